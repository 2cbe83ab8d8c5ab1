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

typedef float type_1[1];
typedef uint type_3[1];
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
, device type_3 const& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
) {
    float sum = 0.0;
    uint rank = 0u;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint column = (wid.x * 256u) + lid;
    uint _e13 = p.width;
    if (column < _e13) {
        uint _e18 = p.width;
        uint at = (wid.y * _e18) + column;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e50 = rank;
                rank = _e50 + 1u;
            }
            loop_init = false;
            uint _e25 = rank;
            uint _e28 = p.k;
            if (_e25 < _e28) {
            } else {
                break;
            }
            {
                uint _e33 = p.k;
                uint _e35 = rank;
                uint pair = (wid.y * _e33) + _e35;
                uint _e40 = p.width;
                float _e44 = rows[(pair * _e40) + column];
                float _e47 = weights[pair];
                float _e48 = sum;
                sum = metal::fma(_e44, _e47, _e48);
            }
        }
        float _e55 = always[at];
        float _e59 = factor[wid.y];
        float _e66 = sum;
        sum = metal::fma(_e55, 1.0 / (1.0 + metal::exp(-(_e59))), _e66);
        float _e72 = y[at];
        float _e73 = sum;
        y[at] = _e72 + _e73;
        return;
    } else {
        return;
    }
}
