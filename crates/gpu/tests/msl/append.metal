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
typedef uint type_3[1];
struct Parameters {
    uint width;
    uint first;
    uint position;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& key [[buffer(1)]]
, device type_1 const& value [[buffer(2)]]
, device type_3& keys [[buffer(3)]]
, device type_3& values [[buffer(4)]]
, device type_3 const& control [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint word = (wid.x * 256u) + lid;
    uint _e13 = p.width;
    uint words = _e13 / 2u;
    if (word < words) {
        uint _e19 = p.first;
        uint _e24 = p.width;
        uint source = ((_e19 + wid.y) * _e24) + (word * 2u);
        uint _e31 = p.position;
        uint to = ((_e31 + wid.y) * words) + word;
        float _e40 = key[source];
        float _e45 = key[source + 1u];
        keys[to] = as_type<uint>(half2(metal::float2(_e40, _e45)));
        float _e52 = value[source];
        float _e57 = value[source + 1u];
        values[to] = as_type<uint>(half2(metal::float2(_e52, _e57)));
        return;
    } else {
        return;
    }
}
