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
    uint size5;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint experts;
    uint k;
    uint normalise;
    uint first_id;
    uint table_start;
    uint flag;
};
struct type_5 {
    metal::float4 inner[256];
};
struct type_6 {
    uint inner[32];
};
struct type_7 {
    float inner[32];
};
struct type_8 {
    float inner[256];
};

float sixteen(
    uint first,
    uint step,
    threadgroup type_8& red
) {
    float _e4 = red.inner[first];
    float _e8 = red.inner[first + step];
    float _e15 = red.inner[first + (2u * step)];
    float _e21 = red.inner[first + (3u * step)];
    float a = (_e4 + _e8) + (_e15 + _e21);
    float _e29 = red.inner[first + (4u * step)];
    float _e35 = red.inner[first + (5u * step)];
    float _e42 = red.inner[first + (6u * step)];
    float _e48 = red.inner[first + (7u * step)];
    float b = (_e29 + _e35) + (_e42 + _e48);
    float _e56 = red.inner[first + (8u * step)];
    float _e62 = red.inner[first + (9u * step)];
    float _e69 = red.inner[first + (10u * step)];
    float _e75 = red.inner[first + (11u * step)];
    float c = (_e56 + _e62) + (_e69 + _e75);
    float _e83 = red.inner[first + (12u * step)];
    float _e89 = red.inner[first + (13u * step)];
    float _e96 = red.inner[first + (14u * step)];
    float _e102 = red.inner[first + (15u * step)];
    float d = (_e83 + _e89) + (_e96 + _e102);
    return (a + b) + (c + d);
}

float tree_sum(
    uint lid_1,
    threadgroup type_8& red
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e4 = sixteen(lid_1 & 15u, 16u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid_1 < 16u) {
        red.inner[lid_1] = _e4;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e11 = sixteen(0u, 1u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return _e11;
}

float tree_max(
    uint lid_2,
    threadgroup type_8& red
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
            if (lid_2 < _e6) {
                float _e12 = red.inner[lid_2];
                uint _e14 = half_;
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
, device type_1 const& logits [[buffer(1)]]
, device type_3 const& table [[buffer(2)]]
, device type_3& ids [[buffer(3)]]
, device type_1& weights [[buffer(4)]]
, device type_3& tiles [[buffer(5)]]
, device type_3& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_5& score
, threadgroup uint& raised
, threadgroup type_6& chosen
, threadgroup type_7& best
, threadgroup type_8& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
) {
    bool local = {};
    float greatest = -300000000000000000000000000000000000000.0;
    uint e = {};
    float value = {};
    float sum = 0.0;
    uint e_1 = {};
    metal::uint4 before = {};
    uint other = {};
    uint place = 0u;
    uint other_1 = 0u;
    float all = {};
    uint place_1 = 0u;
    if (lid == 0u) {
        uint _e7 = control[0];
        raised = _e7;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint unnamed = raised;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (unnamed != 0u) {
        uint _e16 = p.flag;
        local = unnamed != _e16;
    } else {
        local = false;
    }
    bool _e19 = local;
    if (_e19) {
        return;
    }
    uint _e23 = p.experts;
    uint at = wid.x * _e23;
    score.inner[lid] = metal::float4(-340000000000000000000000000000000000000.0);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    e = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e68 = e;
            e = _e68 + 256u;
        }
        loop_init_1 = false;
        uint _e32 = e;
        uint _e35 = p.experts;
        if (_e32 < _e35) {
        } else {
            break;
        }
        {
            uint _e38 = e;
            float _e41 = logits[at + _e38];
            value = _e41;
            float _e43 = value;
            if ((as_type<uint>(_e43) & 2147483647u) > 2139095040u) {
                control[1] = wid.x + 1u;
                value = -300000000000000000000000000000000000000.0;
            }
            uint _e56 = e;
            uint _e60 = e;
            float _e64 = value;
            score.inner[_e56 >> 2u][_e60 & 3u] = _e64;
            float _e65 = greatest;
            float _e66 = value;
            greatest = metal::max(_e65, _e66);
        }
    }
    float _e73 = greatest;
    red.inner[lid] = _e73;
    float _e74 = tree_max(lid, red);
    greatest = _e74;
    uint _e79 = p.experts;
    uint fours = (_e79 + 3u) >> 2u;
    e_1 = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e173 = e_1;
            e_1 = _e173 + 256u;
        }
        loop_init_2 = false;
        uint _e85 = e_1;
        uint _e88 = p.experts;
        if (_e85 < _e88) {
        } else {
            break;
        }
        {
            uint _e91 = e_1;
            uint _e95 = e_1;
            float mine = score.inner[_e91 >> 2u][_e95 & 3u];
            before = metal::uint4(0u);
            other = 0u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e147 = other;
                    other = _e147 + 1u;
                }
                loop_init_3 = false;
                uint _e105 = other;
                if (_e105 < fours) {
                } else {
                    break;
                }
                {
                    uint _e108 = other;
                    metal::float4 theirs = score.inner[_e108];
                    uint _e111 = other;
                    metal::uint4 numbers = metal::uint4(_e111 * 4u) + metal::uint4(0u, 1u, 2u, 3u);
                    uint _e132 = e_1;
                    metal::uint4 same = metal::select(metal::uint4(0u), metal::uint4(1u), theirs == metal::float4(mine)) * metal::select(metal::uint4(0u), metal::uint4(1u), numbers < metal::uint4(_e132));
                    metal::uint4 _e137 = before;
                    before = (_e137 + same) + metal::select(metal::uint4(0u), metal::uint4(1u), theirs > metal::float4(mine));
                }
            }
            uint _e151 = before.x;
            uint _e153 = before.y;
            uint _e156 = before.z;
            uint _e158 = before.w;
            uint rank = (_e151 + _e153) + (_e156 + _e158);
            uint _e163 = p.k;
            if (rank < _e163) {
                uint _e167 = e_1;
                chosen.inner[rank] = _e167;
            }
            float _e168 = sum;
            float _e169 = greatest;
            sum = _e168 + metal::exp(mine - _e169);
        }
    }
    float _e178 = sum;
    red.inner[lid] = _e178;
    float _e179 = tree_sum(lid, red);
    sum = _e179;
    uint _e182 = p.k;
    if (lid < _e182) {
        uint e_2 = chosen.inner[lid];
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e204 = other_1;
                other_1 = _e204 + 1u;
            }
            loop_init_4 = false;
            uint _e191 = other_1;
            uint _e194 = p.k;
            if (_e191 < _e194) {
            } else {
                break;
            }
            {
                uint _e197 = other_1;
                uint _e199 = chosen.inner[_e197];
                if (_e199 < e_2) {
                    uint _e201 = place;
                    place = _e201 + 1u;
                }
            }
        }
        uint _e210 = p.k;
        uint _e212 = place;
        uint pair = (wid.x * _e210) + _e212;
        uint _e215 = place;
        float _e224 = score.inner[e_2 >> 2u][e_2 & 3u];
        float _e225 = greatest;
        best.inner[_e215] = metal::exp(_e224 - _e225);
        uint _e231 = p.first_id;
        ids[_e231 + pair] = e_2;
        uint _e237 = p.table_start;
        uint _e240 = table[_e237 + e_2];
        if (_e240 == 0u) {
            uint _e247 = p.flag;
            control[0] = _e247;
        }
        tiles[pair * 3u] = e_2;
        tiles[(pair * 3u) + 1u] = pair;
        tiles[(pair * 3u) + 2u] = 1u;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e267 = p.k;
    if (lid < _e267) {
        float _e269 = sum;
        all = _e269;
        uint _e273 = p.normalise;
        if (_e273 != 0u) {
            all = 0.0;
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e290 = place_1;
                    place_1 = _e290 + 1u;
                }
                loop_init_5 = false;
                uint _e279 = place_1;
                uint _e282 = p.k;
                if (_e279 < _e282) {
                } else {
                    break;
                }
                {
                    float _e284 = all;
                    uint _e286 = place_1;
                    float _e288 = best.inner[_e286];
                    all = _e284 + _e288;
                }
            }
        }
        uint _e297 = p.k;
        float _e303 = best.inner[lid];
        float _e304 = all;
        weights[(wid.x * _e297) + lid] = _e303 / _e304;
        return;
    } else {
        return;
    }
}
