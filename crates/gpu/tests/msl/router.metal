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
    uint experts;
    uint k;
    uint normalise;
};
struct type_4 {
    float inner[1024];
};
struct type_5 {
    uint inner[1024];
};
struct type_6 {
    float inner[32];
};
struct type_7 {
    float inner[256];
};

float tree_sum(
    uint lid_1,
    threadgroup type_7& red
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
    threadgroup type_7& red
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
, device type_1 const& logits [[buffer(1)]]
, device type_3& ids [[buffer(2)]]
, device type_1& weights [[buffer(3)]]
, device type_3& tiles [[buffer(4)]]
, device type_3& broken [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& score
, threadgroup type_5& chosen
, threadgroup type_6& best
, threadgroup type_7& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    float greatest = -300000000000000000000000000000000000000.0;
    uint e = {};
    float value = {};
    float sum = 0.0;
    uint e_1 = {};
    uint before = {};
    uint other = {};
    bool local = {};
    bool local_1 = {};
    uint e_2 = {};
    uint place = {};
    uint other_1 = {};
    float all = {};
    uint place_1 = 0u;
    uint _e5 = p.experts;
    uint at = wid.x * _e5;
    e = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e40 = e;
            e = _e40 + 256u;
        }
        loop_init_2 = false;
        uint _e10 = e;
        uint _e13 = p.experts;
        if (_e10 < _e13) {
        } else {
            break;
        }
        {
            uint _e16 = e;
            float _e19 = logits[at + _e16];
            value = _e19;
            float _e21 = value;
            if ((as_type<uint>(_e21) & 2147483647u) > 2139095040u) {
                broken[0] = wid.x + 1u;
                value = -300000000000000000000000000000000000000.0;
            }
            uint _e34 = e;
            float _e36 = value;
            score.inner[_e34] = _e36;
            float _e37 = greatest;
            float _e38 = value;
            greatest = metal::max(_e37, _e38);
        }
    }
    float _e45 = greatest;
    red.inner[lid] = _e45;
    float _e46 = tree_max(lid, red);
    greatest = _e46;
    e_1 = lid;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e108 = e_1;
            e_1 = _e108 + 256u;
        }
        loop_init_3 = false;
        uint _e50 = e_1;
        uint _e53 = p.experts;
        if (_e50 < _e53) {
        } else {
            break;
        }
        {
            uint _e56 = e_1;
            float mine = score.inner[_e56];
            before = 0u;
            other = 0u;
            bool loop_init_4 = true;
            while(true) {
                if (!loop_init_4) {
                    uint _e89 = other;
                    other = _e89 + 1u;
                }
                loop_init_4 = false;
                uint _e63 = other;
                uint _e66 = p.experts;
                if (_e63 < _e66) {
                } else {
                    break;
                }
                {
                    uint _e69 = other;
                    float theirs = score.inner[_e69];
                    if (!((theirs > mine))) {
                        if (theirs == mine) {
                            uint _e79 = other;
                            uint _e80 = e_1;
                            local_1 = _e79 < _e80;
                        } else {
                            local_1 = false;
                        }
                        bool _e83 = local_1;
                        local = _e83;
                    } else {
                        local = true;
                    }
                    bool _e85 = local;
                    if (_e85) {
                        uint _e86 = before;
                        before = _e86 + 1u;
                    }
                }
            }
            uint _e93 = e_1;
            uint _e97 = before;
            uint _e100 = p.k;
            chosen.inner[_e93] = (_e97 < _e100) ? 1u : 0u;
            float _e103 = sum;
            float _e104 = greatest;
            sum = _e103 + metal::exp(mine - _e104);
        }
    }
    float _e113 = sum;
    red.inner[lid] = _e113;
    float _e114 = tree_sum(lid, red);
    sum = _e114;
    e_2 = lid;
    bool loop_init_5 = true;
    while(true) {
        if (!loop_init_5) {
            uint _e181 = e_2;
            e_2 = _e181 + 256u;
        }
        loop_init_5 = false;
        uint _e116 = e_2;
        uint _e119 = p.experts;
        if (_e116 < _e119) {
        } else {
            break;
        }
        {
            uint _e122 = e_2;
            uint _e124 = chosen.inner[_e122];
            if (_e124 == 1u) {
                place = 0u;
                other_1 = 0u;
                bool loop_init_6 = true;
                while(true) {
                    if (!loop_init_6) {
                        uint _e140 = other_1;
                        other_1 = _e140 + 1u;
                    }
                    loop_init_6 = false;
                    uint _e131 = other_1;
                    uint _e132 = e_2;
                    if (_e131 < _e132) {
                    } else {
                        break;
                    }
                    {
                        uint _e134 = place;
                        uint _e136 = other_1;
                        uint _e138 = chosen.inner[_e136];
                        place = _e134 + _e138;
                    }
                }
                uint _e146 = p.k;
                uint _e148 = place;
                uint pair = (wid.x * _e146) + _e148;
                uint _e151 = place;
                uint _e154 = e_2;
                float _e156 = score.inner[_e154];
                float _e157 = greatest;
                best.inner[_e151] = metal::exp(_e156 - _e157);
                uint _e162 = e_2;
                ids[pair] = _e162;
                uint _e167 = e_2;
                tiles[pair * 3u] = _e167;
                tiles[(pair * 3u) + 1u] = pair;
                tiles[(pair * 3u) + 2u] = 1u;
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e186 = p.k;
    if (lid < _e186) {
        float _e188 = sum;
        all = _e188;
        uint _e192 = p.normalise;
        if (_e192 != 0u) {
            all = 0.0;
            bool loop_init_7 = true;
            while(true) {
                if (!loop_init_7) {
                    uint _e209 = place_1;
                    place_1 = _e209 + 1u;
                }
                loop_init_7 = false;
                uint _e198 = place_1;
                uint _e201 = p.k;
                if (_e198 < _e201) {
                } else {
                    break;
                }
                {
                    float _e203 = all;
                    uint _e205 = place_1;
                    float _e207 = best.inner[_e205];
                    all = _e203 + _e207;
                }
            }
        }
        uint _e216 = p.k;
        float _e222 = best.inner[lid];
        float _e223 = all;
        weights[(wid.x * _e216) + lid] = _e222 / _e223;
        return;
    } else {
        return;
    }
}
