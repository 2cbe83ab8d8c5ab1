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
, device type_1 const& x [[buffer(1)]]
, device type_1 const& weight [[buffer(2)]]
, device type_1& y [[buffer(3)]]
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
    uint _e10 = p.width;
    uint row = wid.x * _e10;
    i = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e32 = i;
            i = _e32 + 256u;
        }
        loop_init = false;
        uint _e15 = i;
        uint _e18 = p.width;
        if (_e15 < _e18) {
        } else {
            break;
        }
        {
            uint _e21 = i;
            float _e24 = x[row + _e21];
            uint _e26 = i;
            float _e29 = x[row + _e26];
            float _e30 = squares;
            squares = metal::fma(_e24, _e29, _e30);
        }
    }
    float _e37 = squares;
    red.inner[lid] = _e37;
    float _e38 = tree_sum(lid, red);
    uint _e41 = p.width;
    uint _e46 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e38 / static_cast<float>(_e41)) + as_type<float>(_e46));
    i_1 = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e73 = i_1;
            i_1 = _e73 + 256u;
        }
        loop_init_1 = false;
        uint _e53 = i_1;
        uint _e56 = p.width;
        if (_e53 < _e56) {
        } else {
            break;
        }
        {
            uint _e59 = i_1;
            uint _e63 = i_1;
            float _e66 = x[row + _e63];
            uint _e69 = i_1;
            float _e71 = weight[_e69];
            y[row + _e59] = (_e66 * factor) * _e71;
        }
    }
    return;
}
