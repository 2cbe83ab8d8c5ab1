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
    uint dim;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& both [[buffer(1)]]
, device type_1& query [[buffer(2)]]
, device type_1& gate [[buffer(3)]]
, device type_3 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint column = (wid.x * 256u) + lid;
    uint _e13 = p.width;
    if (column < _e13) {
        uint _e18 = p.width;
        uint _e22 = p.dim;
        uint _e26 = p.dim;
        uint _e33 = p.dim;
        uint source = (((wid.y * _e18) + ((column / _e22) * _e26)) * 2u) + (column % _e33);
        uint _e40 = p.width;
        float _e46 = both[source];
        query[(wid.y * _e40) + column] = _e46;
        uint _e51 = p.width;
        uint _e58 = p.dim;
        float _e61 = both[source + _e58];
        gate[(wid.y * _e51) + column] = _e61;
        return;
    } else {
        return;
    }
}
