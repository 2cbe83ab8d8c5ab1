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
    uint count;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& gate [[buffer(1)]]
, device type_1& x [[buffer(2)]]
, device type_3 const& control [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint i = (((wid.y * 32768u) + wid.x) * 256u) + lid;
    uint _e17 = p.count;
    if (i < _e17) {
        float _e23 = x[i];
        float _e26 = gate[i];
        x[i] = _e23 * (1.0 / (1.0 + metal::exp(-(_e26))));
        return;
    } else {
        return;
    }
}
