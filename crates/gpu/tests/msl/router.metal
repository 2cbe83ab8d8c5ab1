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
            uint _e71 = e;
            e = _e71 + 256u;
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
            if ((as_type<uint>(_e43) & 2147483647u) >= 2139095040u) {
                control[1] = wid.x + 1u;
                value = -300000000000000000000000000000000000000.0;
            }
            float _e55 = value;
            value = metal::max(_e55, -330000000000000000000000000000000000000.0);
            uint _e59 = e;
            uint _e63 = e;
            float _e67 = value;
            score.inner[_e59 >> 2u][_e63 & 3u] = _e67;
            float _e68 = greatest;
            float _e69 = value;
            greatest = metal::max(_e68, _e69);
        }
    }
    float _e76 = greatest;
    red.inner[lid] = _e76;
    float _e77 = tree_max(lid, red);
    greatest = _e77;
    uint _e82 = p.experts;
    uint fours = (_e82 + 3u) >> 2u;
    e_1 = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e176 = e_1;
            e_1 = _e176 + 256u;
        }
        loop_init_2 = false;
        uint _e88 = e_1;
        uint _e91 = p.experts;
        if (_e88 < _e91) {
        } else {
            break;
        }
        {
            uint _e94 = e_1;
            uint _e98 = e_1;
            float mine = score.inner[_e94 >> 2u][_e98 & 3u];
            before = metal::uint4(0u);
            other = 0u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e150 = other;
                    other = _e150 + 1u;
                }
                loop_init_3 = false;
                uint _e108 = other;
                if (_e108 < fours) {
                } else {
                    break;
                }
                {
                    uint _e111 = other;
                    metal::float4 theirs = score.inner[_e111];
                    uint _e114 = other;
                    metal::uint4 numbers = metal::uint4(_e114 * 4u) + metal::uint4(0u, 1u, 2u, 3u);
                    uint _e135 = e_1;
                    metal::uint4 same = metal::select(metal::uint4(0u), metal::uint4(1u), theirs == metal::float4(mine)) * metal::select(metal::uint4(0u), metal::uint4(1u), numbers < metal::uint4(_e135));
                    metal::uint4 _e140 = before;
                    before = (_e140 + same) + metal::select(metal::uint4(0u), metal::uint4(1u), theirs > metal::float4(mine));
                }
            }
            uint _e154 = before.x;
            uint _e156 = before.y;
            uint _e159 = before.z;
            uint _e161 = before.w;
            uint rank = (_e154 + _e156) + (_e159 + _e161);
            uint _e166 = p.k;
            if (rank < _e166) {
                uint _e170 = e_1;
                chosen.inner[rank] = _e170;
            }
            float _e171 = sum;
            float _e172 = greatest;
            sum = _e171 + metal::exp(mine - _e172);
        }
    }
    float _e181 = sum;
    red.inner[lid] = _e181;
    float _e182 = tree_sum(lid, red);
    sum = _e182;
    uint _e185 = p.k;
    if (lid < _e185) {
        uint e_2 = chosen.inner[lid];
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e207 = other_1;
                other_1 = _e207 + 1u;
            }
            loop_init_4 = false;
            uint _e194 = other_1;
            uint _e197 = p.k;
            if (_e194 < _e197) {
            } else {
                break;
            }
            {
                uint _e200 = other_1;
                uint _e202 = chosen.inner[_e200];
                if (_e202 < e_2) {
                    uint _e204 = place;
                    place = _e204 + 1u;
                }
            }
        }
        uint _e213 = p.k;
        uint _e215 = place;
        uint pair = (wid.x * _e213) + _e215;
        uint _e218 = place;
        float _e227 = score.inner[e_2 >> 2u][e_2 & 3u];
        float _e228 = greatest;
        best.inner[_e218] = metal::exp(_e227 - _e228);
        uint _e234 = p.first_id;
        ids[_e234 + pair] = e_2;
        uint _e240 = p.table_start;
        uint _e243 = table[_e240 + e_2];
        if (_e243 == 0u) {
            uint _e250 = p.flag;
            control[0] = _e250;
        }
        tiles[pair * 3u] = e_2;
        tiles[(pair * 3u) + 1u] = pair;
        tiles[(pair * 3u) + 2u] = 1u;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e270 = p.k;
    if (lid < _e270) {
        float _e272 = sum;
        all = _e272;
        uint _e276 = p.normalise;
        if (_e276 != 0u) {
            all = 0.0;
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e293 = place_1;
                    place_1 = _e293 + 1u;
                }
                loop_init_5 = false;
                uint _e282 = place_1;
                uint _e285 = p.k;
                if (_e282 < _e285) {
                } else {
                    break;
                }
                {
                    float _e287 = all;
                    uint _e289 = place_1;
                    float _e291 = best.inner[_e289];
                    all = _e287 + _e291;
                }
            }
        }
        uint _e300 = p.k;
        float _e306 = best.inner[lid];
        float _e307 = all;
        weights[(wid.x * _e300) + lid] = _e306 / _e307;
        return;
    } else {
        return;
    }
}
