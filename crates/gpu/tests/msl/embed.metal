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
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    uint unit = {};
    uint row = tokens[wid.x];
    unit = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e135 = unit;
            unit = _e135 + 256u;
        }
        loop_init = false;
        uint _e7 = unit;
        uint _e10 = p.columns;
        if (_e7 < (_e10 / 8u)) {
        } else {
            break;
        }
        {
            uint _e14 = unit;
            uint column = _e14 * 8u;
            uint _e20 = p.columns;
            uint at = (wid.x * _e20) + column;
            uint _e25 = p.row_words;
            uint _e27 = unit;
            uint first = (row * _e25) + (_e27 * 1u);
            uint q0_ = w[first + 0u];
            uint _e38 = p.row_groups;
            uint g = (row * _e38) + (column / 64u);
            uint _e47 = scales[g >> 1u];
            float _e48 = number(_e47, g);
            uint _e53 = biases[g >> 1u];
            float _e54 = number(_e53, g);
            y[at + 0u] = metal::fma(static_cast<float>((q0_ >> 0u) & 15u), _e48, _e54);
            y[at + 1u] = metal::fma(static_cast<float>((q0_ >> 4u) & 15u), _e48, _e54);
            y[at + 2u] = metal::fma(static_cast<float>((q0_ >> 8u) & 15u), _e48, _e54);
            y[at + 3u] = metal::fma(static_cast<float>((q0_ >> 12u) & 15u), _e48, _e54);
            y[at + 4u] = metal::fma(static_cast<float>((q0_ >> 16u) & 15u), _e48, _e54);
            y[at + 5u] = metal::fma(static_cast<float>((q0_ >> 20u) & 15u), _e48, _e54);
            y[at + 6u] = metal::fma(static_cast<float>((q0_ >> 24u) & 15u), _e48, _e54);
            y[at + 7u] = metal::fma(static_cast<float>((q0_ >> 28u) & 15u), _e48, _e54);
        }
    }
    return;
}
