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

typedef float type_1[1];
struct Parameters {
    uint width;
    uint k;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& rows [[buffer(1)]]
, device type_1 const& weights [[buffer(2)]]
, device type_1 const& always [[buffer(3)]]
, device type_1 const& factor [[buffer(4)]]
, device type_1& y [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    float sum = 0.0;
    uint rank = 0u;
    uint column = (wid.x * 256u) + lid;
    uint _e8 = p.width;
    if (column < _e8) {
        uint _e13 = p.width;
        uint at = (wid.y * _e13) + column;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e45 = rank;
                rank = _e45 + 1u;
            }
            loop_init = false;
            uint _e20 = rank;
            uint _e23 = p.k;
            if (_e20 < _e23) {
            } else {
                break;
            }
            {
                uint _e28 = p.k;
                uint _e30 = rank;
                uint pair = (wid.y * _e28) + _e30;
                uint _e35 = p.width;
                float _e39 = rows[(pair * _e35) + column];
                float _e42 = weights[pair];
                float _e43 = sum;
                sum = metal::fma(_e39, _e42, _e43);
            }
        }
        float _e50 = always[at];
        float _e54 = factor[wid.y];
        float _e61 = sum;
        sum = metal::fma(_e50, 1.0 / (1.0 + metal::exp(-(_e54))), _e61);
        float _e67 = y[at];
        float _e68 = sum;
        y[at] = _e67 + _e68;
        return;
    } else {
        return;
    }
}
