// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
};

typedef float type_1[1];
struct Parameters {
    uint count;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& gate [[buffer(1)]]
, device type_1& x [[buffer(2)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(3)]]
) {
    uint i = (((wid.y * 32768u) + wid.x) * 256u) + lid;
    uint _e12 = p.count;
    if (i < _e12) {
        float _e18 = x[i];
        float _e21 = gate[i];
        x[i] = _e18 * (1.0 / (1.0 + metal::exp(-(_e21))));
        return;
    } else {
        return;
    }
}
