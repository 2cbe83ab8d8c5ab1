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
    uint _e10 = p.first;
    uint _e13 = p.query_heads;
    uint _e18 = p.dim;
    uint at_query = ((_e10 * _e13) + head) * _e18;
    uint _e22 = p.dim;
    uint words = _e22 / 2u;
    uint parts = 256u / words;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e88 = block;
            block = _e88 + 1u;
        }
        loop_init = false;
        uint _e37 = block;
        uint _e42 = p.position;
        if ((_e37 * 64u) <= _e42) {
        } else {
            break;
        }
        {
            uint _e44 = block;
            uint _e47 = p.query_heads;
            uint begin = ((_e44 * _e47) + head) * 514u;
            float near = partial[begin + lid];
            float far = partial[(begin + 256u) + lid];
            float most = partial[begin + 512u];
            float weight = partial[begin + 513u];
            float _e72 = greatest;
            float now = metal::max(_e72, most);
            float _e74 = greatest;
            float keep = metal::exp(_e74 - now);
            float share = metal::exp(most - now);
            float _e79 = total;
            total = metal::fma(_e79, keep, weight * share);
            float _e82 = sum;
            sum = metal::fma(_e82, keep, near * share);
            float _e85 = more;
            more = metal::fma(_e85, keep, far * share);
            greatest = now;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e93 = sum;
    red.inner[lid] = _e93;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e97 = red.inner[lid];
        all = _e97;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e111 = other;
                other = _e111 + 1u;
            }
            loop_init_1 = false;
            uint _e101 = other;
            if (_e101 < parts) {
            } else {
                break;
            }
            {
                float _e103 = all;
                uint _e105 = other;
                float _e109 = red.inner[lid + (_e105 * words)];
                all = _e103 + _e109;
            }
        }
        float _e121 = all;
        float _e122 = total;
        uint _e129 = p.dim;
        float _e137 = both[(((at_query * 2u) + _e129) + (lid * 2u)) + 0u];
        y[(at_query + (lid * 2u)) + 0u] = (_e121 / _e122) * (1.0 / (1.0 + metal::exp(-(_e137))));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e147 = more;
    red.inner[lid] = _e147;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e151 = red.inner[lid];
        all_1 = _e151;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e165 = other_1;
                other_1 = _e165 + 1u;
            }
            loop_init_2 = false;
            uint _e155 = other_1;
            if (_e155 < parts) {
            } else {
                break;
            }
            {
                float _e157 = all_1;
                uint _e159 = other_1;
                float _e163 = red.inner[lid + (_e159 * words)];
                all_1 = _e157 + _e163;
            }
        }
        float _e175 = all_1;
        float _e176 = total;
        uint _e183 = p.dim;
        float _e191 = both[(((at_query * 2u) + _e183) + (lid * 2u)) + 1u];
        y[(at_query + (lid * 2u)) + 1u] = (_e175 / _e176) * (1.0 / (1.0 + metal::exp(-(_e191))));
        return;
    } else {
        return;
    }
}
