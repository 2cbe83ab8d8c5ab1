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
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    uint column = (wid.x * 256u) + lid;
    uint _e8 = p.width;
    if (column < _e8) {
        uint _e13 = p.width;
        uint _e17 = p.dim;
        uint _e21 = p.dim;
        uint _e28 = p.dim;
        uint source = (((wid.y * _e13) + ((column / _e17) * _e21)) * 2u) + (column % _e28);
        uint _e35 = p.width;
        float _e41 = both[source];
        query[(wid.y * _e35) + column] = _e41;
        uint _e46 = p.width;
        uint _e53 = p.dim;
        float _e56 = both[source + _e53];
        gate[(wid.y * _e46) + column] = _e56;
        return;
    } else {
        return;
    }
}
