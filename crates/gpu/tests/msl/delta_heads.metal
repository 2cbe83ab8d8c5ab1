// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint channels;
    uint key_heads;
    uint dim;
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
, device type_1& x [[buffer(1)]]
, device type_3 const& control [[buffer(2)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(3)]]
) {
    float value = 0.0;
    float factor = 1.0;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e10 = p.channels;
    uint _e15 = p.dim;
    uint at = (wid.y * _e10) + (wid.x * _e15);
    uint _e22 = p.dim;
    if (lid < _e22) {
        float _e27 = x[at + lid];
        value = _e27;
    }
    float _e30 = value;
    float _e31 = value;
    red.inner[lid] = _e30 * _e31;
    float _e33 = tree_sum(lid, red);
    float root = metal::sqrt(_e33 + 0.000001);
    uint _e42 = p.key_heads;
    if (wid.x < _e42) {
        uint _e46 = p.dim;
        factor = 1.0 / metal::sqrt(static_cast<float>(_e46));
    }
    uint _e53 = p.dim;
    if (lid < _e53) {
        float _e58 = value;
        float _e59 = factor;
        x[at + lid] = _e58 * (_e59 / root);
        return;
    } else {
        return;
    }
}
