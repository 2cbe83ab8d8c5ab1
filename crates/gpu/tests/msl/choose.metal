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
    uint size6;
    uint size7;
    uint size8;
    uint size9;
    uint size10;
    uint size11;
    uint size12;
    uint size13;
};

typedef float type_1[1];
typedef uint type_3[1];
typedef metal::uint4 type_5[1];
typedef metal::float4 type_7[1];
struct Parameters {
    uint experts;
    uint k;
    uint normalise;
    uint first_id;
    uint table_start;
    uint flag;
    uint rows;
    uint columns;
    uint row_words;
    uint row_groups;
};
struct type_8 {
    metal::float4 inner[576];
};
struct type_9 {
    float inner[512];
};
struct type_10 {
    float inner[64];
};
struct type_11 {
    uint inner[32];
};
struct type_12 {
    float inner[32];
};
struct type_13 {
    float inner[256];
};

float number(
    uint word,
    uint index
) {
    return as_type<float>((word >> ((index & 1u) * 16u)) << 16u);
}

float sixteen(
    uint first,
    uint step,
    threadgroup type_13& red
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
    threadgroup type_13& red
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
    threadgroup type_13& red
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
, device type_5 const& w0_ [[buffer(6)]]
, device type_3 const& scales0_ [[buffer(7)]]
, device type_3 const& biases0_ [[buffer(8)]]
, device type_5 const& w1_ [[buffer(9)]]
, device type_3 const& scales1_ [[buffer(10)]]
, device type_3 const& biases1_ [[buffer(11)]]
, device type_7 const& x [[buffer(12)]]
, device type_1& y [[buffer(13)]]
, device type_3& control [[buffer(14)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& staged
, threadgroup type_9& sums
, threadgroup type_10& part
, threadgroup type_10& fin
, threadgroup uint& raised
, threadgroup type_11& chosen
, threadgroup type_12& best
, threadgroup type_13& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(15)]]
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
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    metal::uint4 n_u0_0_0_ = {};
    uint n_sw0_0_ = {};
    uint n_bw0_0_ = {};
    metal::uint4 n_u1_0_0_ = {};
    uint n_sw1_0_ = {};
    uint n_bw1_0_ = {};
    metal::uint4 n_u0_0_1_ = {};
    uint n_sw0_1_ = {};
    uint n_bw0_1_ = {};
    metal::uint4 n_u1_0_1_ = {};
    uint n_sw1_1_ = {};
    uint n_bw1_1_ = {};
    uint begin = 0u;
    uint vec_at = {};
    float all0_0_ = {};
    float dot0_0_ = {};
    float dot1_0_ = {};
    float all0_0_1 = {};
    float dot0_0_1 = {};
    float dot1_0_1 = {};
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
    if (wid.x == 0u) {
        uint _e26 = p.experts;
        uint at = wid.x * _e26;
        staged.inner[lid] = metal::float4(-340000000000000000000000000000000000000.0);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        e = lid;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e74 = e;
                e = _e74 + 256u;
            }
            loop_init_1 = false;
            uint _e35 = e;
            uint _e38 = p.experts;
            if (_e35 < _e38) {
            } else {
                break;
            }
            {
                uint _e41 = e;
                float _e44 = logits[at + _e41];
                value = _e44;
                float _e46 = value;
                if ((as_type<uint>(_e46) & 2147483647u) >= 2139095040u) {
                    control[1] = wid.x + 1u;
                    value = -300000000000000000000000000000000000000.0;
                }
                float _e58 = value;
                value = metal::max(_e58, -330000000000000000000000000000000000000.0);
                uint _e62 = e;
                uint _e66 = e;
                float _e70 = value;
                staged.inner[_e62 >> 2u][_e66 & 3u] = _e70;
                float _e71 = greatest;
                float _e72 = value;
                greatest = metal::max(_e71, _e72);
            }
        }
        float _e79 = greatest;
        red.inner[lid] = _e79;
        float _e80 = tree_max(lid, red);
        greatest = _e80;
        uint _e85 = p.experts;
        uint fours = (_e85 + 3u) >> 2u;
        e_1 = lid;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e179 = e_1;
                e_1 = _e179 + 256u;
            }
            loop_init_2 = false;
            uint _e91 = e_1;
            uint _e94 = p.experts;
            if (_e91 < _e94) {
            } else {
                break;
            }
            {
                uint _e97 = e_1;
                uint _e101 = e_1;
                float mine = staged.inner[_e97 >> 2u][_e101 & 3u];
                before = metal::uint4(0u);
                other = 0u;
                bool loop_init_3 = true;
                while(true) {
                    if (!loop_init_3) {
                        uint _e153 = other;
                        other = _e153 + 1u;
                    }
                    loop_init_3 = false;
                    uint _e111 = other;
                    if (_e111 < fours) {
                    } else {
                        break;
                    }
                    {
                        uint _e114 = other;
                        metal::float4 theirs = staged.inner[_e114];
                        uint _e117 = other;
                        metal::uint4 numbers = metal::uint4(_e117 * 4u) + metal::uint4(0u, 1u, 2u, 3u);
                        uint _e138 = e_1;
                        metal::uint4 same = metal::select(metal::uint4(0u), metal::uint4(1u), theirs == metal::float4(mine)) * metal::select(metal::uint4(0u), metal::uint4(1u), numbers < metal::uint4(_e138));
                        metal::uint4 _e143 = before;
                        before = (_e143 + same) + metal::select(metal::uint4(0u), metal::uint4(1u), theirs > metal::float4(mine));
                    }
                }
                uint _e157 = before.x;
                uint _e159 = before.y;
                uint _e162 = before.z;
                uint _e164 = before.w;
                uint rank = (_e157 + _e159) + (_e162 + _e164);
                uint _e169 = p.k;
                if (rank < _e169) {
                    uint _e173 = e_1;
                    chosen.inner[rank] = _e173;
                }
                float _e174 = sum;
                float _e175 = greatest;
                sum = _e174 + metal::exp(mine - _e175);
            }
        }
        float _e184 = sum;
        red.inner[lid] = _e184;
        float _e185 = tree_sum(lid, red);
        sum = _e185;
        uint _e188 = p.k;
        if (lid < _e188) {
            uint e_2 = chosen.inner[lid];
            bool loop_init_4 = true;
            while(true) {
                if (!loop_init_4) {
                    uint _e210 = other_1;
                    other_1 = _e210 + 1u;
                }
                loop_init_4 = false;
                uint _e197 = other_1;
                uint _e200 = p.k;
                if (_e197 < _e200) {
                } else {
                    break;
                }
                {
                    uint _e203 = other_1;
                    uint _e205 = chosen.inner[_e203];
                    if (_e205 < e_2) {
                        uint _e207 = place;
                        place = _e207 + 1u;
                    }
                }
            }
            uint _e216 = p.k;
            uint _e218 = place;
            uint pair = (wid.x * _e216) + _e218;
            uint _e221 = place;
            float _e230 = staged.inner[e_2 >> 2u][e_2 & 3u];
            float _e231 = greatest;
            best.inner[_e221] = metal::exp(_e230 - _e231);
            uint _e237 = p.first_id;
            ids[_e237 + pair] = e_2;
            uint _e243 = p.table_start;
            uint _e246 = table[_e243 + e_2];
            if (_e246 == 0u) {
                uint _e253 = p.flag;
                control[0] = _e253;
            }
            tiles[pair * 3u] = e_2;
            tiles[(pair * 3u) + 1u] = pair;
            tiles[(pair * 3u) + 2u] = 1u;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint _e273 = p.k;
        if (lid < _e273) {
            float _e275 = sum;
            all = _e275;
            uint _e279 = p.normalise;
            if (_e279 != 0u) {
                all = 0.0;
                bool loop_init_5 = true;
                while(true) {
                    if (!loop_init_5) {
                        uint _e296 = place_1;
                        place_1 = _e296 + 1u;
                    }
                    loop_init_5 = false;
                    uint _e285 = place_1;
                    uint _e288 = p.k;
                    if (_e285 < _e288) {
                    } else {
                        break;
                    }
                    {
                        float _e290 = all;
                        uint _e292 = place_1;
                        float _e294 = best.inner[_e292];
                        all = _e290 + _e294;
                    }
                }
            }
            uint _e303 = p.k;
            float _e309 = best.inner[lid];
            float _e310 = all;
            weights[(wid.x * _e303) + lid] = _e309 / _e310;
            return;
        } else {
            return;
        }
    } else {
        uint lane = lid & 31u;
        uint team = lid >> 5u;
        uint _e318 = p.columns;
        uint units = _e318 / 32u;
        uint first_1 = (((wid.x - 1u) * 8u) + team) * 1u;
        uint _e337 = p.rows;
        uint row0_ = metal::min(first_1 + 0u, _e337 - 1u);
        uint _e345 = p.rows;
        uint row1_ = metal::min(first_1 + 0u, _e345 - 1u);
        uint _e351 = p.row_words;
        uint w0_1 = row0_ * _e351;
        uint _e355 = p.row_groups;
        uint s0_ = row0_ * _e355;
        uint _e359 = p.row_words;
        uint w1_1 = row1_ * _e359;
        uint _e363 = p.row_groups;
        uint s1_ = row1_ * _e363;
        {
            uint unit0_ = metal::min((0u + 0u) + lane, units - 1u);
            uint unit1_ = metal::min((0u + 32u) + lane, units - 1u);
            metal::uint4 _e395 = w0_[(w0_1 / 4u) + unit0_];
            n_u0_0_0_ = _e395;
            uint _e405 = scales0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
            n_sw0_0_ = _e405;
            uint _e415 = biases0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
            n_bw0_0_ = _e415;
            metal::uint4 _e421 = w1_[(w1_1 / 4u) + unit0_];
            n_u1_0_0_ = _e421;
            uint _e431 = scales1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
            n_sw1_0_ = _e431;
            uint _e441 = biases1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
            n_bw1_0_ = _e441;
            metal::uint4 _e447 = w0_[(w0_1 / 4u) + unit1_];
            n_u0_0_1_ = _e447;
            uint _e457 = scales0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
            n_sw0_1_ = _e457;
            uint _e467 = biases0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
            n_bw0_1_ = _e467;
            metal::uint4 _e473 = w1_[(w1_1 / 4u) + unit1_];
            n_u1_0_1_ = _e473;
            uint _e483 = scales1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
            n_sw1_1_ = _e483;
            uint _e493 = biases1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
            n_bw1_1_ = _e493;
        }
        bool loop_init_6 = true;
        while(true) {
            if (!loop_init_6) {
                uint _e2411 = begin;
                begin = _e2411 + 64u;
            }
            loop_init_6 = false;
            uint _e496 = begin;
            if (_e496 < units) {
            } else {
                break;
            }
            {
                uint _e498 = begin;
                if (_e498 > 0u) {
                    uint next = begin;
                    uint unit0_1 = metal::min((next + 0u) + lane, units - 1u);
                    uint unit1_1 = metal::min((next + 32u) + lane, units - 1u);
                    metal::uint4 _e519 = w0_[(w0_1 / 4u) + unit0_1];
                    n_u0_0_0_ = _e519;
                    uint _e529 = scales0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                    n_sw0_0_ = _e529;
                    uint _e539 = biases0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                    n_bw0_0_ = _e539;
                    metal::uint4 _e545 = w1_[(w1_1 / 4u) + unit0_1];
                    n_u1_0_0_ = _e545;
                    uint _e555 = scales1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                    n_sw1_0_ = _e555;
                    uint _e565 = biases1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                    n_bw1_0_ = _e565;
                    metal::uint4 _e571 = w0_[(w0_1 / 4u) + unit1_1];
                    n_u0_0_1_ = _e571;
                    uint _e581 = scales0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                    n_sw0_1_ = _e581;
                    uint _e591 = biases0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                    n_bw0_1_ = _e591;
                    metal::uint4 _e597 = w1_[(w1_1 / 4u) + unit1_1];
                    n_u1_0_1_ = _e597;
                    uint _e607 = scales1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                    n_sw1_1_ = _e607;
                    uint _e617 = biases1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                    n_bw1_1_ = _e617;
                }
                metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                uint _e618 = begin;
                uint _e625 = p.columns;
                uint vec_end = metal::min((_e618 + 64u) * 8u, _e625 >> 2u);
                uint _e629 = begin;
                vec_at = (_e629 * 8u) + lid;
                bool loop_init_7 = true;
                while(true) {
                    if (!loop_init_7) {
                        uint _e650 = vec_at;
                        vec_at = _e650 + 256u;
                    }
                    loop_init_7 = false;
                    uint _e634 = vec_at;
                    if (_e634 < vec_end) {
                    } else {
                        break;
                    }
                    {
                        uint _e636 = vec_at;
                        uint _e637 = begin;
                        uint local_1 = _e636 - (_e637 * 8u);
                        uint _e647 = vec_at;
                        metal::float4 _e649 = x[_e647];
                        staged.inner[local_1 + (local_1 >> 3u)] = _e649;
                    }
                }
                metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                metal::uint4 u0_0_0_ = n_u0_0_0_;
                uint sw0_0_ = n_sw0_0_;
                uint bw0_0_ = n_bw0_0_;
                metal::uint4 u1_0_0_ = n_u1_0_0_;
                uint sw1_0_ = n_sw1_0_;
                uint bw1_0_ = n_bw1_0_;
                metal::uint4 u0_0_1_ = n_u0_0_1_;
                uint sw0_1_ = n_sw0_1_;
                uint bw0_1_ = n_bw0_1_;
                metal::uint4 u1_0_1_ = n_u1_0_1_;
                uint sw1_1_ = n_sw1_1_;
                uint bw1_1_ = n_bw1_1_;
                uint _e665 = begin;
                uint unit0_2 = (_e665 + 0u) + lane;
                if (unit0_2 < units) {
                    uint column = unit0_2 * 32u;
                    uint q0_0_0_ = u0_0_0_.x;
                    uint q0_1_0_ = u0_0_0_.y;
                    uint q0_2_0_ = u0_0_0_.z;
                    uint q0_3_0_ = u0_0_0_.w;
                    float _e679 = number(sw0_0_, s0_ + (column / 64u));
                    float _e683 = number(bw0_0_, s0_ + (column / 64u));
                    uint q1_0_0_ = u1_0_0_.x;
                    uint q1_1_0_ = u1_0_0_.y;
                    uint q1_2_0_ = u1_0_0_.z;
                    uint q1_3_0_ = u1_0_0_.w;
                    float _e691 = number(sw1_0_, s1_ + (column / 64u));
                    float _e695 = number(bw1_0_, s1_ + (column / 64u));
                    uint _e698 = begin;
                    uint local_2 = (column >> 2u) - (_e698 * 8u);
                    uint place_2 = local_2 + (local_2 >> 3u);
                    float v0_0_0_ = as_type<float>((q0_0_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_1_ = as_type<float>((q0_0_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_0_2_ = as_type<float>((q0_0_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_3_ = as_type<float>((q0_0_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_4_ = as_type<float>((q0_0_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_0_5_ = as_type<float>(((q0_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_6_ = as_type<float>(((q0_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_7_ = as_type<float>(((q0_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_8_ = as_type<float>((q0_1_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_9_ = as_type<float>((q0_1_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_0_10_ = as_type<float>((q0_1_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_11_ = as_type<float>((q0_1_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_12_ = as_type<float>((q0_1_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_0_13_ = as_type<float>(((q0_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_14_ = as_type<float>(((q0_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_15_ = as_type<float>(((q0_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_16_ = as_type<float>((q0_2_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_17_ = as_type<float>((q0_2_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_0_18_ = as_type<float>((q0_2_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_19_ = as_type<float>((q0_2_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_20_ = as_type<float>((q0_2_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_0_21_ = as_type<float>(((q0_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_22_ = as_type<float>(((q0_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_23_ = as_type<float>(((q0_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_24_ = as_type<float>((q0_3_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_25_ = as_type<float>((q0_3_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_0_26_ = as_type<float>((q0_3_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_27_ = as_type<float>((q0_3_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_28_ = as_type<float>((q0_3_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_0_29_ = as_type<float>(((q0_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_30_ = as_type<float>(((q0_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_31_ = as_type<float>(((q0_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_0_ = as_type<float>((q1_0_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_1_ = as_type<float>((q1_0_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_1_2_ = as_type<float>((q1_0_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_3_ = as_type<float>((q1_0_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_4_ = as_type<float>((q1_0_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_1_5_ = as_type<float>(((q1_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_6_ = as_type<float>(((q1_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_7_ = as_type<float>(((q1_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_8_ = as_type<float>((q1_1_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_9_ = as_type<float>((q1_1_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_1_10_ = as_type<float>((q1_1_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_11_ = as_type<float>((q1_1_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_12_ = as_type<float>((q1_1_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_1_13_ = as_type<float>(((q1_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_14_ = as_type<float>(((q1_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_15_ = as_type<float>(((q1_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_16_ = as_type<float>((q1_2_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_17_ = as_type<float>((q1_2_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_1_18_ = as_type<float>((q1_2_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_19_ = as_type<float>((q1_2_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_20_ = as_type<float>((q1_2_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_1_21_ = as_type<float>(((q1_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_22_ = as_type<float>(((q1_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_23_ = as_type<float>(((q1_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_24_ = as_type<float>((q1_3_0_ & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_25_ = as_type<float>((q1_3_0_ & 240u) | 1224736768u) - 524288.0;
                    float v0_1_26_ = as_type<float>((q1_3_0_ & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_27_ = as_type<float>((q1_3_0_ & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_28_ = as_type<float>((q1_3_0_ & 983040u) | 1124073472u) - 128.0;
                    float v0_1_29_ = as_type<float>(((q1_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_30_ = as_type<float>(((q1_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_31_ = as_type<float>(((q1_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    metal::float4 i0_0_0_ = staged.inner[place_2 + 0u];
                    metal::float4 i0_0_1_ = staged.inner[place_2 + 1u];
                    metal::float4 i0_0_2_ = staged.inner[place_2 + 2u];
                    metal::float4 i0_0_3_ = staged.inner[place_2 + 3u];
                    metal::float4 i0_0_4_ = staged.inner[place_2 + 4u];
                    metal::float4 i0_0_5_ = staged.inner[place_2 + 5u];
                    metal::float4 i0_0_6_ = staged.inner[place_2 + 6u];
                    metal::float4 i0_0_7_ = staged.inner[place_2 + 7u];
                    all0_0_ = i0_0_0_.x;
                    float _e1243 = all0_0_;
                    all0_0_ = _e1243 + i0_0_0_.y;
                    float _e1246 = all0_0_;
                    all0_0_ = _e1246 + i0_0_0_.z;
                    float _e1249 = all0_0_;
                    all0_0_ = _e1249 + i0_0_0_.w;
                    float _e1252 = all0_0_;
                    all0_0_ = _e1252 + i0_0_1_.x;
                    float _e1255 = all0_0_;
                    all0_0_ = _e1255 + i0_0_1_.y;
                    float _e1258 = all0_0_;
                    all0_0_ = _e1258 + i0_0_1_.z;
                    float _e1261 = all0_0_;
                    all0_0_ = _e1261 + i0_0_1_.w;
                    float _e1264 = all0_0_;
                    all0_0_ = _e1264 + i0_0_2_.x;
                    float _e1267 = all0_0_;
                    all0_0_ = _e1267 + i0_0_2_.y;
                    float _e1270 = all0_0_;
                    all0_0_ = _e1270 + i0_0_2_.z;
                    float _e1273 = all0_0_;
                    all0_0_ = _e1273 + i0_0_2_.w;
                    float _e1276 = all0_0_;
                    all0_0_ = _e1276 + i0_0_3_.x;
                    float _e1279 = all0_0_;
                    all0_0_ = _e1279 + i0_0_3_.y;
                    float _e1282 = all0_0_;
                    all0_0_ = _e1282 + i0_0_3_.z;
                    float _e1285 = all0_0_;
                    all0_0_ = _e1285 + i0_0_3_.w;
                    float _e1288 = all0_0_;
                    all0_0_ = _e1288 + i0_0_4_.x;
                    float _e1291 = all0_0_;
                    all0_0_ = _e1291 + i0_0_4_.y;
                    float _e1294 = all0_0_;
                    all0_0_ = _e1294 + i0_0_4_.z;
                    float _e1297 = all0_0_;
                    all0_0_ = _e1297 + i0_0_4_.w;
                    float _e1300 = all0_0_;
                    all0_0_ = _e1300 + i0_0_5_.x;
                    float _e1303 = all0_0_;
                    all0_0_ = _e1303 + i0_0_5_.y;
                    float _e1306 = all0_0_;
                    all0_0_ = _e1306 + i0_0_5_.z;
                    float _e1309 = all0_0_;
                    all0_0_ = _e1309 + i0_0_5_.w;
                    float _e1312 = all0_0_;
                    all0_0_ = _e1312 + i0_0_6_.x;
                    float _e1315 = all0_0_;
                    all0_0_ = _e1315 + i0_0_6_.y;
                    float _e1318 = all0_0_;
                    all0_0_ = _e1318 + i0_0_6_.z;
                    float _e1321 = all0_0_;
                    all0_0_ = _e1321 + i0_0_6_.w;
                    float _e1324 = all0_0_;
                    all0_0_ = _e1324 + i0_0_7_.x;
                    float _e1327 = all0_0_;
                    all0_0_ = _e1327 + i0_0_7_.y;
                    float _e1330 = all0_0_;
                    all0_0_ = _e1330 + i0_0_7_.z;
                    float _e1333 = all0_0_;
                    all0_0_ = _e1333 + i0_0_7_.w;
                    dot0_0_ = v0_0_0_ * i0_0_0_.x;
                    float _e1340 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e1340);
                    float _e1343 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e1343);
                    float _e1346 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e1346);
                    float _e1349 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e1349);
                    float _e1352 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e1352);
                    float _e1355 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e1355);
                    float _e1358 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e1358);
                    float _e1361 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e1361);
                    float _e1364 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e1364);
                    float _e1367 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e1367);
                    float _e1370 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e1370);
                    float _e1373 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e1373);
                    float _e1376 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e1376);
                    float _e1379 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e1379);
                    float _e1382 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e1382);
                    float _e1385 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_16_, i0_0_4_.x, _e1385);
                    float _e1388 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_17_, i0_0_4_.y, _e1388);
                    float _e1391 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_18_, i0_0_4_.z, _e1391);
                    float _e1394 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_19_, i0_0_4_.w, _e1394);
                    float _e1397 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_20_, i0_0_5_.x, _e1397);
                    float _e1400 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_21_, i0_0_5_.y, _e1400);
                    float _e1403 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_22_, i0_0_5_.z, _e1403);
                    float _e1406 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_23_, i0_0_5_.w, _e1406);
                    float _e1409 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_24_, i0_0_6_.x, _e1409);
                    float _e1412 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_25_, i0_0_6_.y, _e1412);
                    float _e1415 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_26_, i0_0_6_.z, _e1415);
                    float _e1418 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_27_, i0_0_6_.w, _e1418);
                    float _e1421 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_28_, i0_0_7_.x, _e1421);
                    float _e1424 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_29_, i0_0_7_.y, _e1424);
                    float _e1427 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_30_, i0_0_7_.z, _e1427);
                    float _e1430 = dot0_0_;
                    dot0_0_ = metal::fma(v0_0_31_, i0_0_7_.w, _e1430);
                    float _e1432 = dot0_0_;
                    float _e1433 = all0_0_;
                    float _e1434 = acc0_;
                    acc0_ = metal::fma(_e679, _e1432, metal::fma(_e683, _e1433, _e1434));
                    dot1_0_ = v0_1_0_ * i0_0_0_.x;
                    float _e1441 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_1_, i0_0_0_.y, _e1441);
                    float _e1444 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_2_, i0_0_0_.z, _e1444);
                    float _e1447 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_3_, i0_0_0_.w, _e1447);
                    float _e1450 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_4_, i0_0_1_.x, _e1450);
                    float _e1453 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_5_, i0_0_1_.y, _e1453);
                    float _e1456 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_6_, i0_0_1_.z, _e1456);
                    float _e1459 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_7_, i0_0_1_.w, _e1459);
                    float _e1462 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_8_, i0_0_2_.x, _e1462);
                    float _e1465 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_9_, i0_0_2_.y, _e1465);
                    float _e1468 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_10_, i0_0_2_.z, _e1468);
                    float _e1471 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_11_, i0_0_2_.w, _e1471);
                    float _e1474 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_12_, i0_0_3_.x, _e1474);
                    float _e1477 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_13_, i0_0_3_.y, _e1477);
                    float _e1480 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_14_, i0_0_3_.z, _e1480);
                    float _e1483 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_15_, i0_0_3_.w, _e1483);
                    float _e1486 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_16_, i0_0_4_.x, _e1486);
                    float _e1489 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_17_, i0_0_4_.y, _e1489);
                    float _e1492 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_18_, i0_0_4_.z, _e1492);
                    float _e1495 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_19_, i0_0_4_.w, _e1495);
                    float _e1498 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_20_, i0_0_5_.x, _e1498);
                    float _e1501 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_21_, i0_0_5_.y, _e1501);
                    float _e1504 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_22_, i0_0_5_.z, _e1504);
                    float _e1507 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_23_, i0_0_5_.w, _e1507);
                    float _e1510 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_24_, i0_0_6_.x, _e1510);
                    float _e1513 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_25_, i0_0_6_.y, _e1513);
                    float _e1516 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_26_, i0_0_6_.z, _e1516);
                    float _e1519 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_27_, i0_0_6_.w, _e1519);
                    float _e1522 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_28_, i0_0_7_.x, _e1522);
                    float _e1525 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_29_, i0_0_7_.y, _e1525);
                    float _e1528 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_30_, i0_0_7_.z, _e1528);
                    float _e1531 = dot1_0_;
                    dot1_0_ = metal::fma(v0_1_31_, i0_0_7_.w, _e1531);
                    float _e1533 = dot1_0_;
                    float _e1534 = all0_0_;
                    float _e1535 = acc1_;
                    acc1_ = metal::fma(_e691, _e1533, metal::fma(_e695, _e1534, _e1535));
                }
                uint _e1538 = begin;
                uint unit1_2 = (_e1538 + 32u) + lane;
                if (unit1_2 < units) {
                    uint column_1 = unit1_2 * 32u;
                    uint q0_0_0_1 = u0_0_1_.x;
                    uint q0_1_0_1 = u0_0_1_.y;
                    uint q0_2_0_1 = u0_0_1_.z;
                    uint q0_3_0_1 = u0_0_1_.w;
                    float _e1552 = number(sw0_1_, s0_ + (column_1 / 64u));
                    float _e1556 = number(bw0_1_, s0_ + (column_1 / 64u));
                    uint q1_0_0_1 = u1_0_1_.x;
                    uint q1_1_0_1 = u1_0_1_.y;
                    uint q1_2_0_1 = u1_0_1_.z;
                    uint q1_3_0_1 = u1_0_1_.w;
                    float _e1564 = number(sw1_1_, s1_ + (column_1 / 64u));
                    float _e1568 = number(bw1_1_, s1_ + (column_1 / 64u));
                    uint _e1571 = begin;
                    uint local_3 = (column_1 >> 2u) - (_e1571 * 8u);
                    uint place_3 = local_3 + (local_3 >> 3u);
                    float v0_0_0_1 = as_type<float>((q0_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_1_1 = as_type<float>((q0_0_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_0_2_1 = as_type<float>((q0_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_3_1 = as_type<float>((q0_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_4_1 = as_type<float>((q0_0_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_0_5_1 = as_type<float>(((q0_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_6_1 = as_type<float>(((q0_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_7_1 = as_type<float>(((q0_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_8_1 = as_type<float>((q0_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_9_1 = as_type<float>((q0_1_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_0_10_1 = as_type<float>((q0_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_11_1 = as_type<float>((q0_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_12_1 = as_type<float>((q0_1_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_0_13_1 = as_type<float>(((q0_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_14_1 = as_type<float>(((q0_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_15_1 = as_type<float>(((q0_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_16_1 = as_type<float>((q0_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_17_1 = as_type<float>((q0_2_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_0_18_1 = as_type<float>((q0_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_19_1 = as_type<float>((q0_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_20_1 = as_type<float>((q0_2_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_0_21_1 = as_type<float>(((q0_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_22_1 = as_type<float>(((q0_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_23_1 = as_type<float>(((q0_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_24_1 = as_type<float>((q0_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_0_25_1 = as_type<float>((q0_3_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_0_26_1 = as_type<float>((q0_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_27_1 = as_type<float>((q0_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_0_28_1 = as_type<float>((q0_3_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_0_29_1 = as_type<float>(((q0_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_0_30_1 = as_type<float>(((q0_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_0_31_1 = as_type<float>(((q0_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_0_1 = as_type<float>((q1_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_1_1 = as_type<float>((q1_0_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_1_2_1 = as_type<float>((q1_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_3_1 = as_type<float>((q1_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_4_1 = as_type<float>((q1_0_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_1_5_1 = as_type<float>(((q1_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_6_1 = as_type<float>(((q1_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_7_1 = as_type<float>(((q1_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_8_1 = as_type<float>((q1_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_9_1 = as_type<float>((q1_1_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_1_10_1 = as_type<float>((q1_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_11_1 = as_type<float>((q1_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_12_1 = as_type<float>((q1_1_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_1_13_1 = as_type<float>(((q1_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_14_1 = as_type<float>(((q1_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_15_1 = as_type<float>(((q1_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_16_1 = as_type<float>((q1_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_17_1 = as_type<float>((q1_2_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_1_18_1 = as_type<float>((q1_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_19_1 = as_type<float>((q1_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_20_1 = as_type<float>((q1_2_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_1_21_1 = as_type<float>(((q1_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_22_1 = as_type<float>(((q1_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_23_1 = as_type<float>(((q1_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_24_1 = as_type<float>((q1_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                    float v0_1_25_1 = as_type<float>((q1_3_0_1 & 240u) | 1224736768u) - 524288.0;
                    float v0_1_26_1 = as_type<float>((q1_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_27_1 = as_type<float>((q1_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                    float v0_1_28_1 = as_type<float>((q1_3_0_1 & 983040u) | 1124073472u) - 128.0;
                    float v0_1_29_1 = as_type<float>(((q1_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                    float v0_1_30_1 = as_type<float>(((q1_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                    float v0_1_31_1 = as_type<float>(((q1_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                    metal::float4 i0_0_0_1 = staged.inner[place_3 + 0u];
                    metal::float4 i0_0_1_1 = staged.inner[place_3 + 1u];
                    metal::float4 i0_0_2_1 = staged.inner[place_3 + 2u];
                    metal::float4 i0_0_3_1 = staged.inner[place_3 + 3u];
                    metal::float4 i0_0_4_1 = staged.inner[place_3 + 4u];
                    metal::float4 i0_0_5_1 = staged.inner[place_3 + 5u];
                    metal::float4 i0_0_6_1 = staged.inner[place_3 + 6u];
                    metal::float4 i0_0_7_1 = staged.inner[place_3 + 7u];
                    all0_0_1 = i0_0_0_1.x;
                    float _e2116 = all0_0_1;
                    all0_0_1 = _e2116 + i0_0_0_1.y;
                    float _e2119 = all0_0_1;
                    all0_0_1 = _e2119 + i0_0_0_1.z;
                    float _e2122 = all0_0_1;
                    all0_0_1 = _e2122 + i0_0_0_1.w;
                    float _e2125 = all0_0_1;
                    all0_0_1 = _e2125 + i0_0_1_1.x;
                    float _e2128 = all0_0_1;
                    all0_0_1 = _e2128 + i0_0_1_1.y;
                    float _e2131 = all0_0_1;
                    all0_0_1 = _e2131 + i0_0_1_1.z;
                    float _e2134 = all0_0_1;
                    all0_0_1 = _e2134 + i0_0_1_1.w;
                    float _e2137 = all0_0_1;
                    all0_0_1 = _e2137 + i0_0_2_1.x;
                    float _e2140 = all0_0_1;
                    all0_0_1 = _e2140 + i0_0_2_1.y;
                    float _e2143 = all0_0_1;
                    all0_0_1 = _e2143 + i0_0_2_1.z;
                    float _e2146 = all0_0_1;
                    all0_0_1 = _e2146 + i0_0_2_1.w;
                    float _e2149 = all0_0_1;
                    all0_0_1 = _e2149 + i0_0_3_1.x;
                    float _e2152 = all0_0_1;
                    all0_0_1 = _e2152 + i0_0_3_1.y;
                    float _e2155 = all0_0_1;
                    all0_0_1 = _e2155 + i0_0_3_1.z;
                    float _e2158 = all0_0_1;
                    all0_0_1 = _e2158 + i0_0_3_1.w;
                    float _e2161 = all0_0_1;
                    all0_0_1 = _e2161 + i0_0_4_1.x;
                    float _e2164 = all0_0_1;
                    all0_0_1 = _e2164 + i0_0_4_1.y;
                    float _e2167 = all0_0_1;
                    all0_0_1 = _e2167 + i0_0_4_1.z;
                    float _e2170 = all0_0_1;
                    all0_0_1 = _e2170 + i0_0_4_1.w;
                    float _e2173 = all0_0_1;
                    all0_0_1 = _e2173 + i0_0_5_1.x;
                    float _e2176 = all0_0_1;
                    all0_0_1 = _e2176 + i0_0_5_1.y;
                    float _e2179 = all0_0_1;
                    all0_0_1 = _e2179 + i0_0_5_1.z;
                    float _e2182 = all0_0_1;
                    all0_0_1 = _e2182 + i0_0_5_1.w;
                    float _e2185 = all0_0_1;
                    all0_0_1 = _e2185 + i0_0_6_1.x;
                    float _e2188 = all0_0_1;
                    all0_0_1 = _e2188 + i0_0_6_1.y;
                    float _e2191 = all0_0_1;
                    all0_0_1 = _e2191 + i0_0_6_1.z;
                    float _e2194 = all0_0_1;
                    all0_0_1 = _e2194 + i0_0_6_1.w;
                    float _e2197 = all0_0_1;
                    all0_0_1 = _e2197 + i0_0_7_1.x;
                    float _e2200 = all0_0_1;
                    all0_0_1 = _e2200 + i0_0_7_1.y;
                    float _e2203 = all0_0_1;
                    all0_0_1 = _e2203 + i0_0_7_1.z;
                    float _e2206 = all0_0_1;
                    all0_0_1 = _e2206 + i0_0_7_1.w;
                    dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                    float _e2213 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e2213);
                    float _e2216 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e2216);
                    float _e2219 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e2219);
                    float _e2222 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e2222);
                    float _e2225 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e2225);
                    float _e2228 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e2228);
                    float _e2231 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e2231);
                    float _e2234 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e2234);
                    float _e2237 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e2237);
                    float _e2240 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e2240);
                    float _e2243 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e2243);
                    float _e2246 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e2246);
                    float _e2249 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e2249);
                    float _e2252 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e2252);
                    float _e2255 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e2255);
                    float _e2258 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_16_1, i0_0_4_1.x, _e2258);
                    float _e2261 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_17_1, i0_0_4_1.y, _e2261);
                    float _e2264 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_18_1, i0_0_4_1.z, _e2264);
                    float _e2267 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_19_1, i0_0_4_1.w, _e2267);
                    float _e2270 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_20_1, i0_0_5_1.x, _e2270);
                    float _e2273 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_21_1, i0_0_5_1.y, _e2273);
                    float _e2276 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_22_1, i0_0_5_1.z, _e2276);
                    float _e2279 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_23_1, i0_0_5_1.w, _e2279);
                    float _e2282 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_24_1, i0_0_6_1.x, _e2282);
                    float _e2285 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_25_1, i0_0_6_1.y, _e2285);
                    float _e2288 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_26_1, i0_0_6_1.z, _e2288);
                    float _e2291 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_27_1, i0_0_6_1.w, _e2291);
                    float _e2294 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_28_1, i0_0_7_1.x, _e2294);
                    float _e2297 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_29_1, i0_0_7_1.y, _e2297);
                    float _e2300 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_30_1, i0_0_7_1.z, _e2300);
                    float _e2303 = dot0_0_1;
                    dot0_0_1 = metal::fma(v0_0_31_1, i0_0_7_1.w, _e2303);
                    float _e2305 = dot0_0_1;
                    float _e2306 = all0_0_1;
                    float _e2307 = acc0_;
                    acc0_ = metal::fma(_e1552, _e2305, metal::fma(_e1556, _e2306, _e2307));
                    dot1_0_1 = v0_1_0_1 * i0_0_0_1.x;
                    float _e2314 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_1_1, i0_0_0_1.y, _e2314);
                    float _e2317 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_2_1, i0_0_0_1.z, _e2317);
                    float _e2320 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_3_1, i0_0_0_1.w, _e2320);
                    float _e2323 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_4_1, i0_0_1_1.x, _e2323);
                    float _e2326 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_5_1, i0_0_1_1.y, _e2326);
                    float _e2329 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_6_1, i0_0_1_1.z, _e2329);
                    float _e2332 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_7_1, i0_0_1_1.w, _e2332);
                    float _e2335 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_8_1, i0_0_2_1.x, _e2335);
                    float _e2338 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_9_1, i0_0_2_1.y, _e2338);
                    float _e2341 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_10_1, i0_0_2_1.z, _e2341);
                    float _e2344 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_11_1, i0_0_2_1.w, _e2344);
                    float _e2347 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_12_1, i0_0_3_1.x, _e2347);
                    float _e2350 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_13_1, i0_0_3_1.y, _e2350);
                    float _e2353 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_14_1, i0_0_3_1.z, _e2353);
                    float _e2356 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_15_1, i0_0_3_1.w, _e2356);
                    float _e2359 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_16_1, i0_0_4_1.x, _e2359);
                    float _e2362 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_17_1, i0_0_4_1.y, _e2362);
                    float _e2365 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_18_1, i0_0_4_1.z, _e2365);
                    float _e2368 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_19_1, i0_0_4_1.w, _e2368);
                    float _e2371 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_20_1, i0_0_5_1.x, _e2371);
                    float _e2374 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_21_1, i0_0_5_1.y, _e2374);
                    float _e2377 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_22_1, i0_0_5_1.z, _e2377);
                    float _e2380 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_23_1, i0_0_5_1.w, _e2380);
                    float _e2383 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_24_1, i0_0_6_1.x, _e2383);
                    float _e2386 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_25_1, i0_0_6_1.y, _e2386);
                    float _e2389 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_26_1, i0_0_6_1.z, _e2389);
                    float _e2392 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_27_1, i0_0_6_1.w, _e2392);
                    float _e2395 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_28_1, i0_0_7_1.x, _e2395);
                    float _e2398 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_29_1, i0_0_7_1.y, _e2398);
                    float _e2401 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_30_1, i0_0_7_1.z, _e2401);
                    float _e2404 = dot1_0_1;
                    dot1_0_1 = metal::fma(v0_1_31_1, i0_0_7_1.w, _e2404);
                    float _e2406 = dot1_0_1;
                    float _e2407 = all0_0_1;
                    float _e2408 = acc1_;
                    acc1_ = metal::fma(_e1564, _e2406, metal::fma(_e1568, _e2407, _e2408));
                }
            }
        }
        float _e2423 = acc0_;
        sums.inner[(((team * 2u) + 0u) * 32u) + lane] = _e2423;
        float _e2433 = acc1_;
        sums.inner[(((team * 2u) + 1u) * 32u) + lane] = _e2433;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if ((lane >> 2u) < 2u) {
            uint slot = (team * 2u) + (lane >> 2u);
            uint at_1 = (slot * 32u) + ((lane & 3u) * 8u);
            float _e2459 = sums.inner[at_1];
            float _e2464 = sums.inner[at_1 + 1u];
            float _e2470 = sums.inner[at_1 + 2u];
            float _e2475 = sums.inner[at_1 + 3u];
            float _e2482 = sums.inner[at_1 + 4u];
            float _e2487 = sums.inner[at_1 + 5u];
            float _e2493 = sums.inner[at_1 + 6u];
            float _e2498 = sums.inner[at_1 + 7u];
            part.inner[(slot * 4u) + (lane & 3u)] = ((_e2459 + _e2464) + (_e2470 + _e2475)) + ((_e2482 + _e2487) + (_e2493 + _e2498));
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if (lane < 2u) {
            uint at_2 = ((team * 2u) + lane) * 4u;
            float _e2511 = part.inner[at_2];
            float _e2516 = part.inner[at_2 + 1u];
            float _e2522 = part.inner[at_2 + 2u];
            float _e2527 = part.inner[at_2 + 3u];
            float sum_1 = (_e2511 + _e2516) + (_e2522 + _e2527);
            fin.inner[(team * 8u) + lane] = sum_1;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if (lane < 2u) {
            uint n = 0u + lane;
            uint r = n % 2u;
            uint t = n / 2u;
            float gate = fin.inner[(team * 8u) + lane];
            float up = fin.inner[metal::min(((team * 8u) + lane) + 1u, 63u)];
            if (r < 1u) {
                uint _e2564 = p.rows;
                if ((first_1 + r) < _e2564) {
                    y[first_1 + r] = (gate / (1.0 + metal::exp(-(gate)))) * up;
                }
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        return;
    }
}
