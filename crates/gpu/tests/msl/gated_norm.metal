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
, device type_1 const& weight [[buffer(1)]]
, device type_1 const& gate [[buffer(2)]]
, device type_1& x [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    float squares = 0.0;
    uint i = {};
    uint i_1 = {};
    uint _e9 = p.width;
    uint row = ((wid.y * 65535u) + wid.x) * _e9;
    i = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e31 = i;
            i = _e31 + 256u;
        }
        loop_init_1 = false;
        uint _e14 = i;
        uint _e17 = p.width;
        if (_e14 < _e17) {
        } else {
            break;
        }
        {
            uint _e20 = i;
            float _e23 = x[row + _e20];
            uint _e25 = i;
            float _e28 = x[row + _e25];
            float _e29 = squares;
            squares = metal::fma(_e23, _e28, _e29);
        }
    }
    float _e36 = squares;
    red.inner[lid] = _e36;
    float _e37 = tree_sum(lid, red);
    uint _e40 = p.width;
    uint _e45 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e37 / static_cast<float>(_e40)) + as_type<float>(_e45));
    i_1 = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e83 = i_1;
            i_1 = _e83 + 256u;
        }
        loop_init_2 = false;
        uint _e52 = i_1;
        uint _e55 = p.width;
        if (_e52 < _e55) {
        } else {
            break;
        }
        {
            uint _e58 = i_1;
            float z = gate[row + _e58];
            uint _e63 = i_1;
            uint _e67 = i_1;
            float _e70 = x[row + _e67];
            uint _e73 = i_1;
            float _e75 = weight[_e73];
            x[row + _e63] = ((_e70 * factor) * _e75) * (z / (1.0 + metal::exp(-(z))));
        }
    }
    return;
}
