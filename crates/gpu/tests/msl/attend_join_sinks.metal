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
    uint query_heads;
    uint key_value_heads;
    uint dim;
    uint first;
    uint position;
    uint scale;
    uint window;
};
struct type_4 {
    float inner[256];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& partial [[buffer(1)]]
, device type_1 const& sinks [[buffer(2)]]
, device type_1& y [[buffer(3)]]
, device type_3 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float greatest = -300000000000000000000000000000000000000.0;
    float total = 0.0;
    float sum = 0.0;
    float more = 0.0;
    uint block = 0u;
    float all = {};
    uint other = 1u;
    float all_1 = {};
    uint other_1 = 1u;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint head = wid.x;
    uint position = p.position;
    uint _e15 = p.window;
    uint _e19 = p.window;
    uint seen = metal::max(position + 1u, _e15) - _e19;
    uint last = position / 64u;
    uint _e25 = p.window;
    uint begin = (last - metal::min(last, (_e25 + 63u) / 64u)) * 64u;
    uint _e36 = p.first;
    uint _e39 = p.query_heads;
    uint _e44 = p.dim;
    uint at_query = ((_e36 * _e39) + head) * _e44;
    uint _e48 = p.dim;
    uint words = _e48 / 2u;
    uint parts = 256u / words;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e112 = block;
            block = _e112 + 1u;
        }
        loop_init = false;
        uint _e63 = block;
        if ((begin + (_e63 * 64u)) <= position) {
        } else {
            break;
        }
        {
            uint _e68 = block;
            uint _e71 = p.query_heads;
            uint start = ((_e68 * _e71) + head) * 514u;
            float near = partial[start + lid];
            float far = partial[(start + 256u) + lid];
            float most = partial[start + 512u];
            float weight = partial[start + 513u];
            float _e96 = greatest;
            float now = metal::max(_e96, most);
            float _e98 = greatest;
            float keep = metal::exp(_e98 - now);
            float share = metal::exp(most - now);
            float _e103 = total;
            total = metal::fma(_e103, keep, weight * share);
            float _e106 = sum;
            sum = metal::fma(_e106, keep, near * share);
            float _e109 = more;
            more = metal::fma(_e109, keep, far * share);
            greatest = now;
        }
    }
    float sink = sinks[head];
    float _e118 = greatest;
    float raised = metal::max(_e118, sink);
    float _e120 = greatest;
    float kept = metal::exp(_e120 - raised);
    float _e123 = total;
    total = metal::fma(_e123, kept, metal::exp(sink - raised));
    float _e127 = sum;
    sum = _e127 * kept;
    float _e129 = more;
    more = _e129 * kept;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e133 = sum;
    red.inner[lid] = _e133;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e137 = red.inner[lid];
        all = _e137;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e151 = other;
                other = _e151 + 1u;
            }
            loop_init_1 = false;
            uint _e141 = other;
            if (_e141 < parts) {
            } else {
                break;
            }
            {
                float _e143 = all;
                uint _e145 = other;
                float _e149 = red.inner[lid + (_e145 * words)];
                all = _e143 + _e149;
            }
        }
        float _e161 = all;
        float _e162 = total;
        y[(at_query + (lid * 2u)) + 0u] = _e161 / _e162;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e166 = more;
    red.inner[lid] = _e166;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e170 = red.inner[lid];
        all_1 = _e170;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e184 = other_1;
                other_1 = _e184 + 1u;
            }
            loop_init_2 = false;
            uint _e174 = other_1;
            if (_e174 < parts) {
            } else {
                break;
            }
            {
                float _e176 = all_1;
                uint _e178 = other_1;
                float _e182 = red.inner[lid + (_e178 * words)];
                all_1 = _e176 + _e182;
            }
        }
        float _e194 = all_1;
        float _e195 = total;
        y[(at_query + (lid * 2u)) + 1u] = _e194 / _e195;
        return;
    } else {
        return;
    }
}
