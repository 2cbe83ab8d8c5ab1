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
    uint heads;
    uint dim;
    uint pairs;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& angles [[buffer(1)]]
, device type_1& x [[buffer(2)]]
, device type_3 const& control [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e9 = p.pairs;
    uint pair = lid % _e9;
    uint _e15 = p.pairs;
    uint _e20 = p.pairs;
    uint head = (wid.x * (256u / _e15)) + (lid / _e20);
    uint _e25 = p.pairs;
    uint _e30 = p.pairs;
    if ((lid / _e25) < (256u / _e30)) {
        uint _e37 = p.heads;
        local = head < _e37;
    } else {
        local = false;
    }
    bool _e40 = local;
    if (_e40) {
        uint _e44 = p.heads;
        uint _e49 = p.dim;
        uint at = (((wid.y * _e44) + head) * _e49) + pair;
        uint _e55 = p.pairs;
        uint angle = ((wid.y * _e55) + pair) * 2u;
        float c = angles[angle];
        float s = angles[angle + 1u];
        float a = x[at];
        uint _e74 = p.pairs;
        float b = x[at + _e74];
        x[at] = metal::fma(a, c, -((b * s)));
        uint _e86 = p.pairs;
        x[at + _e86] = metal::fma(a, s, b * c);
        return;
    } else {
        return;
    }
}
