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
    uint width;
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
, device type_1 const& gate [[buffer(2)]]
, device type_1& x [[buffer(3)]]
, device type_3 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float squares = 0.0;
    uint i = {};
    uint i_1 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e14 = p.width;
    uint row = ((wid.y * 65535u) + wid.x) * _e14;
    i = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e36 = i;
            i = _e36 + 256u;
        }
        loop_init_1 = false;
        uint _e19 = i;
        uint _e22 = p.width;
        if (_e19 < _e22) {
        } else {
            break;
        }
        {
            uint _e25 = i;
            float _e28 = x[row + _e25];
            uint _e30 = i;
            float _e33 = x[row + _e30];
            float _e34 = squares;
            squares = metal::fma(_e28, _e33, _e34);
        }
    }
    float _e41 = squares;
    red.inner[lid] = _e41;
    float _e42 = tree_sum(lid, red);
    uint _e45 = p.width;
    uint _e50 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e42 / static_cast<float>(_e45)) + as_type<float>(_e50));
    i_1 = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e88 = i_1;
            i_1 = _e88 + 256u;
        }
        loop_init_2 = false;
        uint _e57 = i_1;
        uint _e60 = p.width;
        if (_e57 < _e60) {
        } else {
            break;
        }
        {
            uint _e63 = i_1;
            float z = gate[row + _e63];
            uint _e68 = i_1;
            uint _e72 = i_1;
            float _e75 = x[row + _e72];
            uint _e78 = i_1;
            float _e80 = weight[_e78];
            x[row + _e68] = ((_e75 * factor) * _e80) * (z / (1.0 + metal::exp(-(z))));
        }
    }
    return;
}
