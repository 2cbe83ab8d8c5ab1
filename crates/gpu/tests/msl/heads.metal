// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint heads;
    uint dim;
    uint pairs;
    uint epsilon;
};
struct type_4 {
    float inner[256];
};

float tree_sum(
    uint lid_1,
    threadgroup type_4& red
) {
    uint half_ = 128u;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = half_;
            half_ = _e19 >> 1u;
        }
        loop_init = false;
        uint _e3 = half_;
        if (_e3 > 0u) {
        } else {
            break;
        }
        {
            uint _e6 = half_;
            if (lid_1 < _e6) {
                float _e12 = red.inner[lid_1];
                uint _e14 = half_;
                float _e17 = red.inner[lid_1 + _e14];
                red.inner[lid_1] = _e12 + _e17;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float sum = red.inner[0];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return sum;
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& weight [[buffer(1)]]
, device type_1 const& angles [[buffer(2)]]
, device type_1& x [[buffer(3)]]
, device type_3 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, threadgroup type_4& row
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float value = 0.0;
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e10 = p.heads;
    uint _e16 = p.dim;
    uint at = ((wid.y * _e10) + wid.x) * _e16;
    uint _e22 = p.dim;
    if (lid < _e22) {
        float _e27 = x[at + lid];
        value = _e27;
    }
    float _e30 = value;
    float _e31 = value;
    red.inner[lid] = _e30 * _e31;
    float _e33 = tree_sum(lid, red);
    uint _e36 = p.dim;
    uint _e41 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e33 / static_cast<float>(_e36)) + as_type<float>(_e41));
    uint _e49 = p.dim;
    if (lid < _e49) {
        float _e53 = value;
        float _e57 = weight[lid];
        row.inner[lid] = (_e53 * factor) * _e57;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e61 = p.pairs;
    if (lid < _e61) {
        uint _e66 = p.pairs;
        uint angle = ((wid.y * _e66) + lid) * 2u;
        float c = angles[angle];
        float s = angles[angle + 1u];
        float a = row.inner[lid];
        uint _e85 = p.pairs;
        float b = row.inner[lid + _e85];
        x[at + lid] = metal::fma(a, c, -((b * s)));
        uint _e99 = p.pairs;
        x[(at + lid) + _e99] = metal::fma(a, s, b * c);
        return;
    } else {
        uint _e107 = p.pairs;
        if (lid >= (2u * _e107)) {
            uint _e114 = p.dim;
            local = lid < _e114;
        } else {
            local = false;
        }
        bool _e117 = local;
        if (_e117) {
            float _e123 = row.inner[lid];
            x[at + lid] = _e123;
            return;
        } else {
            return;
        }
    }
}
