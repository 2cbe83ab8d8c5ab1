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
, device type_3 const& table [[buffer(2)]]
, device type_3& ids [[buffer(3)]]
, device type_1& weights [[buffer(4)]]
, device type_3& tiles [[buffer(5)]]
, device type_3& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup uint& raised
, threadgroup type_4& score
, threadgroup type_5& chosen
, threadgroup type_6& best
, threadgroup type_7& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
) {
    bool local = {};
    float greatest = -300000000000000000000000000000000000000.0;
    uint e = {};
    float value = {};
    float sum = 0.0;
    uint e_1 = {};
    uint before = {};
    uint other = {};
    bool local_1 = {};
    bool local_2 = {};
    uint e_2 = {};
    uint place = {};
    uint other_1 = {};
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
    e = lid;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e58 = e;
            e = _e58 + 256u;
        }
        loop_init_2 = false;
        uint _e28 = e;
        uint _e31 = p.experts;
        if (_e28 < _e31) {
        } else {
            break;
        }
        {
            uint _e34 = e;
            float _e37 = logits[at + _e34];
            value = _e37;
            float _e39 = value;
            if ((as_type<uint>(_e39) & 2147483647u) > 2139095040u) {
                control[1] = wid.x + 1u;
                value = -300000000000000000000000000000000000000.0;
            }
            uint _e52 = e;
            float _e54 = value;
            score.inner[_e52] = _e54;
            float _e55 = greatest;
            float _e56 = value;
            greatest = metal::max(_e55, _e56);
        }
    }
    float _e63 = greatest;
    red.inner[lid] = _e63;
    float _e64 = tree_max(lid, red);
    greatest = _e64;
    e_1 = lid;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e126 = e_1;
            e_1 = _e126 + 256u;
        }
        loop_init_3 = false;
        uint _e68 = e_1;
        uint _e71 = p.experts;
        if (_e68 < _e71) {
        } else {
            break;
        }
        {
            uint _e74 = e_1;
            float mine = score.inner[_e74];
            before = 0u;
            other = 0u;
            bool loop_init_4 = true;
            while(true) {
                if (!loop_init_4) {
                    uint _e107 = other;
                    other = _e107 + 1u;
                }
                loop_init_4 = false;
                uint _e81 = other;
                uint _e84 = p.experts;
                if (_e81 < _e84) {
                } else {
                    break;
                }
                {
                    uint _e87 = other;
                    float theirs = score.inner[_e87];
                    if (!((theirs > mine))) {
                        if (theirs == mine) {
                            uint _e97 = other;
                            uint _e98 = e_1;
                            local_2 = _e97 < _e98;
                        } else {
                            local_2 = false;
                        }
                        bool _e101 = local_2;
                        local_1 = _e101;
                    } else {
                        local_1 = true;
                    }
                    bool _e103 = local_1;
                    if (_e103) {
                        uint _e104 = before;
                        before = _e104 + 1u;
                    }
                }
            }
            uint _e111 = e_1;
            uint _e115 = before;
            uint _e118 = p.k;
            chosen.inner[_e111] = (_e115 < _e118) ? 1u : 0u;
            float _e121 = sum;
            float _e122 = greatest;
            sum = _e121 + metal::exp(mine - _e122);
        }
    }
    float _e131 = sum;
    red.inner[lid] = _e131;
    float _e132 = tree_sum(lid, red);
    sum = _e132;
    e_2 = lid;
    bool loop_init_5 = true;
    while(true) {
        if (!loop_init_5) {
            uint _e218 = e_2;
            e_2 = _e218 + 256u;
        }
        loop_init_5 = false;
        uint _e134 = e_2;
        uint _e137 = p.experts;
        if (_e134 < _e137) {
        } else {
            break;
        }
        {
            uint _e140 = e_2;
            uint _e142 = chosen.inner[_e140];
            if (_e142 == 1u) {
                place = 0u;
                other_1 = 0u;
                bool loop_init_6 = true;
                while(true) {
                    if (!loop_init_6) {
                        uint _e158 = other_1;
                        other_1 = _e158 + 1u;
                    }
                    loop_init_6 = false;
                    uint _e149 = other_1;
                    uint _e150 = e_2;
                    if (_e149 < _e150) {
                    } else {
                        break;
                    }
                    {
                        uint _e152 = place;
                        uint _e154 = other_1;
                        uint _e156 = chosen.inner[_e154];
                        place = _e152 + _e156;
                    }
                }
                uint _e164 = p.k;
                uint _e166 = place;
                uint pair = (wid.x * _e164) + _e166;
                uint _e169 = place;
                uint _e172 = e_2;
                float _e174 = score.inner[_e172];
                float _e175 = greatest;
                best.inner[_e169] = metal::exp(_e174 - _e175);
                uint _e181 = p.first_id;
                uint _e184 = e_2;
                ids[_e181 + pair] = _e184;
                uint _e188 = p.table_start;
                uint _e189 = e_2;
                uint _e192 = table[_e188 + _e189];
                if (_e192 == 0u) {
                    uint _e199 = p.flag;
                    control[0] = _e199;
                }
                uint _e204 = e_2;
                tiles[pair * 3u] = _e204;
                tiles[(pair * 3u) + 1u] = pair;
                tiles[(pair * 3u) + 2u] = 1u;
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e223 = p.k;
    if (lid < _e223) {
        float _e225 = sum;
        all = _e225;
        uint _e229 = p.normalise;
        if (_e229 != 0u) {
            all = 0.0;
            bool loop_init_7 = true;
            while(true) {
                if (!loop_init_7) {
                    uint _e246 = place_1;
                    place_1 = _e246 + 1u;
                }
                loop_init_7 = false;
                uint _e235 = place_1;
                uint _e238 = p.k;
                if (_e235 < _e238) {
                } else {
                    break;
                }
                {
                    float _e240 = all;
                    uint _e242 = place_1;
                    float _e244 = best.inner[_e242];
                    all = _e240 + _e244;
                }
            }
        }
        uint _e253 = p.k;
        float _e259 = best.inner[lid];
        float _e260 = all;
        weights[(wid.x * _e253) + lid] = _e259 / _e260;
        return;
    } else {
        return;
    }
}
