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
typedef uint type_3[1];
struct Parameters {
    uint width;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& bias [[buffer(1)]]
, device type_1& x [[buffer(2)]]
, device type_3 const& control [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint column = (wid.x * 256u) + lid;
    uint _e13 = p.width;
    if (column < _e13) {
        uint _e18 = p.width;
        uint at = (wid.y * _e18) + column;
        float _e25 = x[at];
        float _e28 = bias[column];
        x[at] = _e25 + _e28;
        return;
    } else {
        return;
    }
}
