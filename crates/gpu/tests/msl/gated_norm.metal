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

float sixteen(
    uint first,
    uint step,
    threadgroup type_4& red
) {
    float _e4 = red.inner[first];
    float _e8 = red.inner[first + step];
    float _e15 = red.inner[first + (2u * step)];
    float _e21 = red.inner[first + (3u * step)];
    float a = (_e4 + _e8) + (_e15 + _e21);
    float _e29 = red.inner[first + (4u * step)];
    float _e35 = red.inner[first + (5u * step)];
    float _e42 = red.inner[first + (6u * step)];
    float _e48 = red.inner[first + (7u * step)];
    float b = (_e29 + _e35) + (_e42 + _e48);
    float _e56 = red.inner[first + (8u * step)];
    float _e62 = red.inner[first + (9u * step)];
    float _e69 = red.inner[first + (10u * step)];
    float _e75 = red.inner[first + (11u * step)];
    float c = (_e56 + _e62) + (_e69 + _e75);
    float _e83 = red.inner[first + (12u * step)];
    float _e89 = red.inner[first + (13u * step)];
    float _e96 = red.inner[first + (14u * step)];
    float _e102 = red.inner[first + (15u * step)];
    float d = (_e83 + _e89) + (_e96 + _e102);
    return (a + b) + (c + d);
}

float tree_sum(
    uint lid_1,
    threadgroup type_4& red
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e4 = sixteen(lid_1 & 15u, 16u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid_1 < 16u) {
        red.inner[lid_1] = _e4;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e11 = sixteen(0u, 1u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return _e11;
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
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e36 = i;
            i = _e36 + 256u;
        }
        loop_init = false;
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
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e88 = i_1;
            i_1 = _e88 + 256u;
        }
        loop_init_1 = false;
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
