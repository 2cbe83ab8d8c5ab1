// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size5;
};

typedef uint type_1[1];
typedef float type_3[1];
struct Parameters {
    uint columns;
    uint row_words;
    uint row_groups;
};

float number(
    uint word,
    uint index
) {
    return as_type<float>((word >> ((index & 1u) * 16u)) << 16u);
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& w [[buffer(1)]]
, device type_1 const& scales [[buffer(2)]]
, device type_1 const& biases [[buffer(3)]]
, device type_1 const& tokens [[buffer(4)]]
, device type_3& y [[buffer(5)]]
, device type_1 const& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
) {
    uint unit = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint row = tokens[wid.x];
    unit = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e162 = unit;
            unit = _e162 + 256u;
        }
        loop_init = false;
        uint _e12 = unit;
        uint _e15 = p.columns;
        if (_e12 < (_e15 / 8u)) {
        } else {
            break;
        }
        {
            uint _e19 = unit;
            uint column = _e19 * 8u;
            uint _e25 = p.columns;
            uint at = (wid.x * _e25) + column;
            uint _e30 = p.row_words;
            uint _e32 = unit;
            uint first = (row * _e30) + (_e32 * 1u);
            uint q0_ = w[first + 0u];
            uint _e43 = p.row_groups;
            uint g = (row * _e43) + (column / 64u);
            uint _e52 = scales[g >> 1u];
            float _e53 = number(_e52, g);
            uint _e58 = biases[g >> 1u];
            float _e59 = number(_e58, g);
            y[at + 0u] = metal::fma(as_type<float>((q0_ & 15u) | 1258291200u) - 8388608.0, _e53, _e59);
            y[at + 1u] = metal::fma(as_type<float>((q0_ & 240u) | 1224736768u) - 524288.0, _e53, _e59);
            y[at + 2u] = metal::fma(as_type<float>((q0_ & 3840u) | 1191182336u) - 32768.0, _e53, _e59);
            y[at + 3u] = metal::fma(as_type<float>((q0_ & 61440u) | 1157627904u) - 2048.0, _e53, _e59);
            y[at + 4u] = metal::fma(as_type<float>((q0_ & 983040u) | 1124073472u) - 128.0, _e53, _e59);
            y[at + 5u] = metal::fma(as_type<float>(((q0_ >> 16u) & 240u) | 1224736768u) - 524288.0, _e53, _e59);
            y[at + 6u] = metal::fma(as_type<float>(((q0_ >> 16u) & 3840u) | 1191182336u) - 32768.0, _e53, _e59);
            y[at + 7u] = metal::fma(as_type<float>(((q0_ >> 16u) & 61440u) | 1157627904u) - 2048.0, _e53, _e59);
        }
    }
    return;
}
