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

float tree_sum(
    uint lid_1,
    threadgroup type_4& red
) {
    uint half_ = 128u;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = half_;
            half_ = _e19 >> 1u;
        }
        loop_init = false;
        uint _e3 = half_;
        if (_e3 > 0u) {
        } else {
            break;
        }
        {
            uint _e6 = half_;
            if (lid_1 < _e6) {
                float _e12 = red.inner[lid_1];
                uint _e14 = half_;
                float _e17 = red.inner[lid_1 + _e14];
                red.inner[lid_1] = _e12 + _e17;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float sum_1 = red.inner[0];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return sum_1;
}

float tree_max(
    uint lid_2,
    threadgroup type_4& red
) {
    uint half_1 = 128u;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e19 = half_1;
            half_1 = _e19 >> 1u;
        }
        loop_init_1 = false;
        uint _e3 = half_1;
        if (_e3 > 0u) {
        } else {
            break;
        }
        {
            uint _e6 = half_1;
            if (lid_2 < _e6) {
                float _e12 = red.inner[lid_2];
                uint _e14 = half_1;
                float _e17 = red.inner[lid_2 + _e14];
                red.inner[lid_2] = metal::max(_e12, _e17);
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float found = red.inner[0];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return found;
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& query [[buffer(1)]]
, device type_3 const& keys [[buffer(2)]]
, device type_3 const& values [[buffer(3)]]
, device type_1& y [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, threadgroup type_4& q
, threadgroup type_4& weights
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float greatest = -300000000000000000000000000000000000000.0;
    float total = 0.0;
    float sum = 0.0;
    uint block = 0u;
    float score = {};
    uint d = {};
    float weight = {};
    uint j = {};
    float all = {};
    uint other = 1u;
    uint head = wid.x;
    uint _e5 = p.first;
    uint row = _e5 + wid.y;
    uint _e10 = p.position;
    uint position = _e10 + wid.y;
    uint _e15 = p.query_heads;
    uint _e18 = p.key_value_heads;
    uint pair_head = head / (_e15 / _e18);
    uint _e23 = p.query_heads;
    uint _e28 = p.dim;
    uint at_query = ((row * _e23) + head) * _e28;
    uint _e32 = p.dim;
    if (lid < _e32) {
        float _e39 = query[at_query + lid];
        uint _e42 = p.scale;
        q.inner[lid] = _e39 * as_type<float>(_e42);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e48 = p.dim;
    uint parts = 256u / _e48;
    uint _e52 = p.dim;
    uint d_1 = lid % _e52;
    uint _e56 = p.dim;
    uint part = lid / _e56;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e185 = block;
            block = _e185 + 256u;
        }
        loop_init_2 = false;
        uint _e66 = block;
        if (_e66 <= position) {
        } else {
            break;
        }
        {
            uint _e68 = block;
            uint mine = _e68 + lid;
            score = -300000000000000000000000000000000000000.0;
            if (mine <= position) {
                score = 0.0;
                uint _e76 = p.key_value_heads;
                uint _e81 = p.dim;
                uint at = ((mine * _e76) + pair_head) * _e81;
                d = 0u;
                bool loop_init_3 = true;
                while(true) {
                    if (!loop_init_3) {
                        uint _e113 = d;
                        d = _e113 + 2u;
                    }
                    loop_init_3 = false;
                    uint _e85 = d;
                    uint _e88 = p.dim;
                    if (_e85 < _e88) {
                    } else {
                        break;
                    }
                    {
                        uint _e91 = d;
                        uint _e96 = keys[(at + _e91) >> 1u];
                        metal::float2 pair = float2(as_type<half2>(_e96));
                        uint _e99 = d;
                        float _e103 = q.inner[_e99 + 1u];
                        uint _e106 = d;
                        float _e108 = q.inner[_e106];
                        float _e110 = score;
                        score = metal::fma(_e103, pair.y, metal::fma(_e108, pair.x, _e110));
                    }
                }
            }
            float _e118 = score;
            red.inner[lid] = _e118;
            float _e119 = greatest;
            float _e120 = tree_max(lid, red);
            float now = metal::max(_e119, _e120);
            weight = 0.0;
            if (mine <= position) {
                float _e125 = score;
                weight = metal::exp(_e125 - now);
            }
            float _e130 = weight;
            weights.inner[lid] = _e130;
            float _e133 = weight;
            red.inner[lid] = _e133;
            float _e134 = greatest;
            float keep = metal::exp(_e134 - now);
            float _e137 = total;
            float _e138 = tree_sum(lid, red);
            total = metal::fma(_e137, keep, _e138);
            greatest = now;
            if (part < parts) {
                float _e141 = sum;
                sum = _e141 * keep;
                uint _e144 = block;
                uint count = metal::min(256u, (position - _e144) + 1u);
                j = part;
                bool loop_init_4 = true;
                while(true) {
                    if (!loop_init_4) {
                        uint _e183 = j;
                        j = _e183 + parts;
                    }
                    loop_init_4 = false;
                    uint _e150 = j;
                    if (_e150 < count) {
                    } else {
                        break;
                    }
                    {
                        uint _e152 = block;
                        uint _e153 = j;
                        uint _e157 = p.key_value_heads;
                        uint _e162 = p.dim;
                        uint at_1 = ((((_e152 + _e153) * _e157) + pair_head) * _e162) + d_1;
                        uint _e166 = j;
                        float _e168 = weights.inner[_e166];
                        uint _e173 = values[at_1 >> 1u];
                        float _e181 = sum;
                        sum = metal::fma(_e168, float2(as_type<half2>((_e173 >> ((at_1 & 1u) * 16u)))).x, _e181);
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float _e190 = sum;
    red.inner[lid] = _e190;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e193 = p.dim;
    if (lid < _e193) {
        float _e197 = red.inner[lid];
        all = _e197;
        bool loop_init_5 = true;
        while(true) {
            if (!loop_init_5) {
                uint _e214 = other;
                other = _e214 + 1u;
            }
            loop_init_5 = false;
            uint _e201 = other;
            if (_e201 < parts) {
            } else {
                break;
            }
            {
                float _e203 = all;
                uint _e205 = other;
                uint _e208 = p.dim;
                float _e212 = red.inner[lid + (_e205 * _e208)];
                all = _e203 + _e212;
            }
        }
        float _e220 = all;
        float _e221 = total;
        y[at_query + lid] = _e220 / _e221;
        return;
    } else {
        return;
    }
}
