// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
};

typedef float type_1[1];
struct Parameters {
    uint channels;
    uint key_heads;
    uint dim;
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
, device type_1& x [[buffer(1)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(2)]]
) {
    float value = 0.0;
    float factor = 1.0;
    uint _e5 = p.channels;
    uint _e10 = p.dim;
    uint at = (wid.y * _e5) + (wid.x * _e10);
    uint _e17 = p.dim;
    if (lid < _e17) {
        float _e22 = x[at + lid];
        value = _e22;
    }
    float _e25 = value;
    float _e26 = value;
    red.inner[lid] = _e25 * _e26;
    float _e28 = tree_sum(lid, red);
    float root = metal::sqrt(_e28 + 0.000001);
    uint _e37 = p.key_heads;
    if (wid.x < _e37) {
        uint _e41 = p.dim;
        factor = 1.0 / metal::sqrt(static_cast<float>(_e41));
    }
    uint _e48 = p.dim;
    if (lid < _e48) {
        float _e53 = value;
        float _e54 = factor;
        x[at + lid] = _e53 * (_e54 / root);
        return;
    } else {
        return;
    }
}
