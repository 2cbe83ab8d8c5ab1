// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
};

typedef float type_1[1];
struct Parameters {
    uint heads;
    uint dim;
    uint pairs;
    uint epsilon;
};
struct type_3 {
    float inner[256];
};

float tree_sum(
    uint lid_1,
    threadgroup type_3& red
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
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& red
, threadgroup type_3& row
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    float value = 0.0;
    bool local = {};
    uint _e5 = p.heads;
    uint _e11 = p.dim;
    uint at = ((wid.y * _e5) + wid.x) * _e11;
    uint _e17 = p.dim;
    if (lid < _e17) {
        float _e22 = x[at + lid];
        value = _e22;
    }
    float _e25 = value;
    float _e26 = value;
    red.inner[lid] = _e25 * _e26;
    float _e28 = tree_sum(lid, red);
    uint _e31 = p.dim;
    uint _e36 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e28 / static_cast<float>(_e31)) + as_type<float>(_e36));
    uint _e44 = p.dim;
    if (lid < _e44) {
        float _e48 = value;
        float _e52 = weight[lid];
        row.inner[lid] = (_e48 * factor) * _e52;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e56 = p.pairs;
    if (lid < _e56) {
        uint _e61 = p.pairs;
        uint angle = ((wid.y * _e61) + lid) * 2u;
        float c = angles[angle];
        float s = angles[angle + 1u];
        float a = row.inner[lid];
        uint _e80 = p.pairs;
        float b = row.inner[lid + _e80];
        x[at + lid] = metal::fma(a, c, -((b * s)));
        uint _e94 = p.pairs;
        x[(at + lid) + _e94] = metal::fma(a, s, b * c);
        return;
    } else {
        uint _e102 = p.pairs;
        if (lid >= (2u * _e102)) {
            uint _e109 = p.dim;
            local = lid < _e109;
        } else {
            local = false;
        }
        bool _e112 = local;
        if (_e112) {
            float _e118 = row.inner[lid];
            x[at + lid] = _e118;
            return;
        } else {
            return;
        }
    }
}
