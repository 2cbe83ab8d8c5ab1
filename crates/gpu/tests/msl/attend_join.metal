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
, device type_1 const& both [[buffer(2)]]
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
    uint _e14 = p.first;
    uint _e17 = p.query_heads;
    uint _e22 = p.dim;
    uint at_query = ((_e14 * _e17) + head) * _e22;
    uint _e26 = p.dim;
    uint words = _e26 / 2u;
    uint parts = 256u / words;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e90 = block;
            block = _e90 + 1u;
        }
        loop_init = false;
        uint _e41 = block;
        if ((0u + (_e41 * 64u)) <= position) {
        } else {
            break;
        }
        {
            uint _e46 = block;
            uint _e49 = p.query_heads;
            uint start = ((_e46 * _e49) + head) * 514u;
            float near = partial[start + lid];
            float far = partial[(start + 256u) + lid];
            float most = partial[start + 512u];
            float weight = partial[start + 513u];
            float _e74 = greatest;
            float now = metal::max(_e74, most);
            float _e76 = greatest;
            float keep = metal::exp(_e76 - now);
            float share = metal::exp(most - now);
            float _e81 = total;
            total = metal::fma(_e81, keep, weight * share);
            float _e84 = sum;
            sum = metal::fma(_e84, keep, near * share);
            float _e87 = more;
            more = metal::fma(_e87, keep, far * share);
            greatest = now;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e95 = sum;
    red.inner[lid] = _e95;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e99 = red.inner[lid];
        all = _e99;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e113 = other;
                other = _e113 + 1u;
            }
            loop_init_1 = false;
            uint _e103 = other;
            if (_e103 < parts) {
            } else {
                break;
            }
            {
                float _e105 = all;
                uint _e107 = other;
                float _e111 = red.inner[lid + (_e107 * words)];
                all = _e105 + _e111;
            }
        }
        float _e123 = all;
        float _e124 = total;
        uint _e131 = p.dim;
        float _e139 = both[(((at_query * 2u) + _e131) + (lid * 2u)) + 0u];
        y[(at_query + (lid * 2u)) + 0u] = (_e123 / _e124) * (1.0 / (1.0 + metal::exp(-(_e139))));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e149 = more;
    red.inner[lid] = _e149;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e153 = red.inner[lid];
        all_1 = _e153;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e167 = other_1;
                other_1 = _e167 + 1u;
            }
            loop_init_2 = false;
            uint _e157 = other_1;
            if (_e157 < parts) {
            } else {
                break;
            }
            {
                float _e159 = all_1;
                uint _e161 = other_1;
                float _e165 = red.inner[lid + (_e161 * words)];
                all_1 = _e159 + _e165;
            }
        }
        float _e177 = all_1;
        float _e178 = total;
        uint _e185 = p.dim;
        float _e193 = both[(((at_query * 2u) + _e185) + (lid * 2u)) + 1u];
        y[(at_query + (lid * 2u)) + 1u] = (_e177 / _e178) * (1.0 / (1.0 + metal::exp(-(_e193))));
        return;
    } else {
        return;
    }
}
