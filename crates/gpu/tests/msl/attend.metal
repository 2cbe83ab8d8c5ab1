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
, device type_3 const& control [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, threadgroup type_4& q
, threadgroup type_4& weights
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
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
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint head = wid.x;
    uint _e10 = p.first;
    uint row = _e10 + wid.y;
    uint _e15 = p.position;
    uint position = _e15 + wid.y;
    uint _e20 = p.query_heads;
    uint _e23 = p.key_value_heads;
    uint pair_head = head / (_e20 / _e23);
    uint _e28 = p.query_heads;
    uint _e33 = p.dim;
    uint at_query = ((row * _e28) + head) * _e33;
    uint _e37 = p.dim;
    if (lid < _e37) {
        float _e44 = query[at_query + lid];
        uint _e47 = p.scale;
        q.inner[lid] = _e44 * as_type<float>(_e47);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e53 = p.dim;
    uint parts = 256u / _e53;
    uint _e57 = p.dim;
    uint d_1 = lid % _e57;
    uint _e61 = p.dim;
    uint part = lid / _e61;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e190 = block;
            block = _e190 + 256u;
        }
        loop_init_2 = false;
        uint _e71 = block;
        if (_e71 <= position) {
        } else {
            break;
        }
        {
            uint _e73 = block;
            uint mine = _e73 + lid;
            score = -300000000000000000000000000000000000000.0;
            if (mine <= position) {
                score = 0.0;
                uint _e81 = p.key_value_heads;
                uint _e86 = p.dim;
                uint at = ((mine * _e81) + pair_head) * _e86;
                d = 0u;
                bool loop_init_3 = true;
                while(true) {
                    if (!loop_init_3) {
                        uint _e118 = d;
                        d = _e118 + 2u;
                    }
                    loop_init_3 = false;
                    uint _e90 = d;
                    uint _e93 = p.dim;
                    if (_e90 < _e93) {
                    } else {
                        break;
                    }
                    {
                        uint _e96 = d;
                        uint _e101 = keys[(at + _e96) >> 1u];
                        metal::float2 pair = float2(as_type<half2>(_e101));
                        uint _e104 = d;
                        float _e108 = q.inner[_e104 + 1u];
                        uint _e111 = d;
                        float _e113 = q.inner[_e111];
                        float _e115 = score;
                        score = metal::fma(_e108, pair.y, metal::fma(_e113, pair.x, _e115));
                    }
                }
            }
            float _e123 = score;
            red.inner[lid] = _e123;
            float _e124 = greatest;
            float _e125 = tree_max(lid, red);
            float now = metal::max(_e124, _e125);
            weight = 0.0;
            if (mine <= position) {
                float _e130 = score;
                weight = metal::exp(_e130 - now);
            }
            float _e135 = weight;
            weights.inner[lid] = _e135;
            float _e138 = weight;
            red.inner[lid] = _e138;
            float _e139 = greatest;
            float keep = metal::exp(_e139 - now);
            float _e142 = total;
            float _e143 = tree_sum(lid, red);
            total = metal::fma(_e142, keep, _e143);
            greatest = now;
            if (part < parts) {
                float _e146 = sum;
                sum = _e146 * keep;
                uint _e149 = block;
                uint count = metal::min(256u, (position - _e149) + 1u);
                j = part;
                bool loop_init_4 = true;
                while(true) {
                    if (!loop_init_4) {
                        uint _e188 = j;
                        j = _e188 + parts;
                    }
                    loop_init_4 = false;
                    uint _e155 = j;
                    if (_e155 < count) {
                    } else {
                        break;
                    }
                    {
                        uint _e157 = block;
                        uint _e158 = j;
                        uint _e162 = p.key_value_heads;
                        uint _e167 = p.dim;
                        uint at_1 = ((((_e157 + _e158) * _e162) + pair_head) * _e167) + d_1;
                        uint _e171 = j;
                        float _e173 = weights.inner[_e171];
                        uint _e178 = values[at_1 >> 1u];
                        float _e186 = sum;
                        sum = metal::fma(_e173, float2(as_type<half2>((_e178 >> ((at_1 & 1u) * 16u)))).x, _e186);
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float _e195 = sum;
    red.inner[lid] = _e195;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e198 = p.dim;
    if (lid < _e198) {
        float _e202 = red.inner[lid];
        all = _e202;
        bool loop_init_5 = true;
        while(true) {
            if (!loop_init_5) {
                uint _e219 = other;
                other = _e219 + 1u;
            }
            loop_init_5 = false;
            uint _e206 = other;
            if (_e206 < parts) {
            } else {
                break;
            }
            {
                float _e208 = all;
                uint _e210 = other;
                uint _e213 = p.dim;
                float _e217 = red.inner[lid + (_e210 * _e213)];
                all = _e208 + _e217;
            }
        }
        float _e225 = all;
        float _e226 = total;
        y[at_query + lid] = _e225 / _e226;
        return;
    } else {
        return;
    }
}
