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
    uint width;
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
, device type_1 const& x [[buffer(1)]]
, device type_1 const& weight [[buffer(2)]]
, device type_1& y [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    float squares = 0.0;
    uint i = {};
    uint i_1 = {};
    uint _e5 = p.width;
    uint row = wid.x * _e5;
    i = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e27 = i;
            i = _e27 + 256u;
        }
        loop_init_1 = false;
        uint _e10 = i;
        uint _e13 = p.width;
        if (_e10 < _e13) {
        } else {
            break;
        }
        {
            uint _e16 = i;
            float _e19 = x[row + _e16];
            uint _e21 = i;
            float _e24 = x[row + _e21];
            float _e25 = squares;
            squares = metal::fma(_e19, _e24, _e25);
        }
    }
    float _e32 = squares;
    red.inner[lid] = _e32;
    float _e33 = tree_sum(lid, red);
    uint _e36 = p.width;
    uint _e41 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e33 / static_cast<float>(_e36)) + as_type<float>(_e41));
    i_1 = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e68 = i_1;
            i_1 = _e68 + 256u;
        }
        loop_init_2 = false;
        uint _e48 = i_1;
        uint _e51 = p.width;
        if (_e48 < _e51) {
        } else {
            break;
        }
        {
            uint _e54 = i_1;
            uint _e58 = i_1;
            float _e61 = x[row + _e58];
            uint _e64 = i_1;
            float _e66 = weight[_e64];
            y[row + _e54] = (_e61 * factor) * _e66;
        }
    }
    return;
}
