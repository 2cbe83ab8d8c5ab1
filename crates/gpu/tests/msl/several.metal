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
};

typedef metal::uint4 type_2[1];
typedef uint type_3[1];
typedef metal::float4 type_6[1];
typedef float type_7[1];
struct Parameters {
    uint columns;
    uint row_words;
    uint row_groups;
    uint epsilon;
    uint rows0_;
    uint rows1_;
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
    threadgroup type_11& red
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
    threadgroup type_11& red
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

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& w0_ [[buffer(1)]]
, device type_3 const& scales0_ [[buffer(2)]]
, device type_3 const& biases0_ [[buffer(3)]]
, device type_2 const& w1_ [[buffer(4)]]
, device type_3 const& scales1_ [[buffer(5)]]
, device type_3 const& biases1_ [[buffer(6)]]
, device type_6 const& x [[buffer(7)]]
, device type_6 const& weight [[buffer(8)]]
, device type_7& y0_ [[buffer(9)]]
, device type_7& y1_ [[buffer(10)]]
, device type_6& normed [[buffer(11)]]
, device type_3 const& control [[buffer(12)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& staged
, threadgroup type_9& sums
, threadgroup type_10& part
, threadgroup type_11& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(13)]]
) {
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    uint which = 0u;
    uint group = {};
    uint rows = {};
    bool local = {};
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
    float squares = 0.0;
    uint i = {};
    uint i_1 = {};
    uint begin = 0u;
    uint vec_at = {};
    float all0_0_ = {};
    float dot0_0_ = {};
    float dot1_0_ = {};
    float all0_0_1 = {};
    float dot0_0_1 = {};
    float dot1_0_1 = {};
    uint stopped = control[0];
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint _e11 = p.columns;
    uint units = _e11 / 32u;
    group = wid.x;
    uint _e24 = p.rows0_;
    rows = _e24;
    uint _e26 = which;
    if (_e26 == 0u) {
        uint _e31 = group;
        uint _e34 = p.rows0_;
        local = _e31 >= ((_e34 + 15u) / 16u);
    } else {
        local = false;
    }
    bool _e41 = local;
    if (_e41) {
        uint _e42 = group;
        uint _e45 = p.rows0_;
        group = _e42 - ((_e45 + 15u) / 16u);
        which = 1u;
        uint _e54 = p.rows1_;
        rows = _e54;
    }
    uint _e55 = group;
    uint first_1 = ((_e55 * 8u) + team) * 2u;
    uint _e63 = rows;
    uint row0_ = metal::min(first_1 + 0u, _e63 - 1u);
    uint _e69 = rows;
    uint row1_ = metal::min(first_1 + 1u, _e69 - 1u);
    uint _e75 = p.row_words;
    uint w0_1 = row0_ * _e75;
    uint _e79 = p.row_groups;
    uint s0_ = row0_ * _e79;
    uint _e83 = p.row_words;
    uint w1_1 = row1_ * _e83;
    uint _e87 = p.row_groups;
    uint s1_ = row1_ * _e87;
    {
        uint unit0_ = metal::min((0u + 0u) + lane, units - 1u);
        uint unit1_ = metal::min((0u + 32u) + lane, units - 1u);
        uint _e114 = which;
        switch(_e114) {
            case 1u: {
                metal::uint4 _e120 = w1_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e120;
                uint _e130 = scales1_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e130;
                uint _e140 = biases1_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e140;
                metal::uint4 _e146 = w1_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e146;
                uint _e156 = scales1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e156;
                uint _e166 = biases1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e166;
                metal::uint4 _e172 = w1_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e172;
                uint _e182 = scales1_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e182;
                uint _e192 = biases1_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e192;
                metal::uint4 _e198 = w1_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e198;
                uint _e208 = scales1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e208;
                uint _e218 = biases1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e218;
                break;
            }
            default: {
                metal::uint4 _e224 = w0_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e224;
                uint _e234 = scales0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e234;
                uint _e244 = biases0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e244;
                metal::uint4 _e250 = w0_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e250;
                uint _e260 = scales0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e260;
                uint _e270 = biases0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e270;
                metal::uint4 _e276 = w0_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e276;
                uint _e286 = scales0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e286;
                uint _e296 = biases0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e296;
                metal::uint4 _e302 = w0_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e302;
                uint _e312 = scales0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e312;
                uint _e322 = biases0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e322;
                break;
            }
        }
    }
    if (stopped != 0u) {
        return;
    }
    i = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e345 = i;
            i = _e345 + 256u;
        }
        loop_init = false;
        uint _e328 = i;
        uint _e331 = p.columns;
        if (_e328 < _e331) {
        } else {
            break;
        }
        {
            uint _e334 = i;
            uint _e338 = i;
            float value = x[_e334 >> 2u][_e338 & 3u];
            float _e343 = squares;
            squares = metal::fma(value, value, _e343);
        }
    }
    float _e350 = squares;
    red.inner[lid] = _e350;
    float _e351 = tree_sum(lid, red);
    uint _e354 = p.columns;
    uint _e359 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e351 / static_cast<float>(_e354)) + as_type<float>(_e359));
    if (wid.x == 0u) {
        i_1 = lid;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e389 = i_1;
                i_1 = _e389 + 256u;
            }
            loop_init_1 = false;
            uint _e369 = i_1;
            uint _e372 = p.columns;
            if (_e369 < (_e372 >> 2u)) {
            } else {
                break;
            }
            {
                uint _e377 = i_1;
                uint _e380 = i_1;
                metal::float4 _e382 = x[_e380];
                uint _e385 = i_1;
                metal::float4 _e387 = weight[_e385];
                normed[_e377] = (_e382 * factor) * _e387;
            }
        }
    }
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e2420 = begin;
            begin = _e2420 + 64u;
        }
        loop_init_2 = false;
        uint _e394 = begin;
        if (_e394 < units) {
        } else {
            break;
        }
        {
            uint _e396 = begin;
            if (_e396 > 0u) {
                uint next = begin;
                uint unit0_1 = metal::min((next + 0u) + lane, units - 1u);
                uint unit1_1 = metal::min((next + 32u) + lane, units - 1u);
                uint _e412 = which;
                switch(_e412) {
                    case 1u: {
                        metal::uint4 _e418 = w1_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e418;
                        uint _e428 = scales1_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e428;
                        uint _e438 = biases1_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e438;
                        metal::uint4 _e444 = w1_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e444;
                        uint _e454 = scales1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e454;
                        uint _e464 = biases1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e464;
                        metal::uint4 _e470 = w1_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e470;
                        uint _e480 = scales1_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e480;
                        uint _e490 = biases1_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e490;
                        metal::uint4 _e496 = w1_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e496;
                        uint _e506 = scales1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e506;
                        uint _e516 = biases1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e516;
                        break;
                    }
                    default: {
                        metal::uint4 _e522 = w0_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e522;
                        uint _e532 = scales0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e532;
                        uint _e542 = biases0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e542;
                        metal::uint4 _e548 = w0_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e548;
                        uint _e558 = scales0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e558;
                        uint _e568 = biases0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e568;
                        metal::uint4 _e574 = w0_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e574;
                        uint _e584 = scales0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e584;
                        uint _e594 = biases0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e594;
                        metal::uint4 _e600 = w0_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e600;
                        uint _e610 = scales0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e610;
                        uint _e620 = biases0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e620;
                        break;
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e621 = begin;
            uint _e628 = p.columns;
            uint vec_end = metal::min((_e621 + 64u) * 8u, _e628 >> 2u);
            uint _e632 = begin;
            vec_at = (_e632 * 8u) + lid;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e659 = vec_at;
                    vec_at = _e659 + 256u;
                }
                loop_init_3 = false;
                uint _e637 = vec_at;
                if (_e637 < vec_end) {
                } else {
                    break;
                }
                {
                    uint _e639 = vec_at;
                    uint _e640 = begin;
                    uint local_1 = _e639 - (_e640 * 8u);
                    uint _e650 = vec_at;
                    metal::float4 _e652 = x[_e650];
                    uint _e655 = vec_at;
                    metal::float4 _e657 = weight[_e655];
                    staged.inner[local_1 + (local_1 >> 3u)] = (_e652 * factor) * _e657;
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
            uint _e674 = begin;
            uint unit0_2 = (_e674 + 0u) + lane;
            if (unit0_2 < units) {
                uint column = unit0_2 * 32u;
                uint q0_0_0_ = u0_0_0_.x;
                uint q0_1_0_ = u0_0_0_.y;
                uint q0_2_0_ = u0_0_0_.z;
                uint q0_3_0_ = u0_0_0_.w;
                float _e688 = number(sw0_0_, s0_ + (column / 64u));
                float _e692 = number(bw0_0_, s0_ + (column / 64u));
                uint q1_0_0_ = u1_0_0_.x;
                uint q1_1_0_ = u1_0_0_.y;
                uint q1_2_0_ = u1_0_0_.z;
                uint q1_3_0_ = u1_0_0_.w;
                float _e700 = number(sw1_0_, s1_ + (column / 64u));
                float _e704 = number(bw1_0_, s1_ + (column / 64u));
                uint _e707 = begin;
                uint local_2 = (column >> 2u) - (_e707 * 8u);
                uint place = local_2 + (local_2 >> 3u);
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
                metal::float4 i0_0_0_ = staged.inner[place + 0u];
                metal::float4 i0_0_1_ = staged.inner[place + 1u];
                metal::float4 i0_0_2_ = staged.inner[place + 2u];
                metal::float4 i0_0_3_ = staged.inner[place + 3u];
                metal::float4 i0_0_4_ = staged.inner[place + 4u];
                metal::float4 i0_0_5_ = staged.inner[place + 5u];
                metal::float4 i0_0_6_ = staged.inner[place + 6u];
                metal::float4 i0_0_7_ = staged.inner[place + 7u];
                all0_0_ = i0_0_0_.x;
                float _e1252 = all0_0_;
                all0_0_ = _e1252 + i0_0_0_.y;
                float _e1255 = all0_0_;
                all0_0_ = _e1255 + i0_0_0_.z;
                float _e1258 = all0_0_;
                all0_0_ = _e1258 + i0_0_0_.w;
                float _e1261 = all0_0_;
                all0_0_ = _e1261 + i0_0_1_.x;
                float _e1264 = all0_0_;
                all0_0_ = _e1264 + i0_0_1_.y;
                float _e1267 = all0_0_;
                all0_0_ = _e1267 + i0_0_1_.z;
                float _e1270 = all0_0_;
                all0_0_ = _e1270 + i0_0_1_.w;
                float _e1273 = all0_0_;
                all0_0_ = _e1273 + i0_0_2_.x;
                float _e1276 = all0_0_;
                all0_0_ = _e1276 + i0_0_2_.y;
                float _e1279 = all0_0_;
                all0_0_ = _e1279 + i0_0_2_.z;
                float _e1282 = all0_0_;
                all0_0_ = _e1282 + i0_0_2_.w;
                float _e1285 = all0_0_;
                all0_0_ = _e1285 + i0_0_3_.x;
                float _e1288 = all0_0_;
                all0_0_ = _e1288 + i0_0_3_.y;
                float _e1291 = all0_0_;
                all0_0_ = _e1291 + i0_0_3_.z;
                float _e1294 = all0_0_;
                all0_0_ = _e1294 + i0_0_3_.w;
                float _e1297 = all0_0_;
                all0_0_ = _e1297 + i0_0_4_.x;
                float _e1300 = all0_0_;
                all0_0_ = _e1300 + i0_0_4_.y;
                float _e1303 = all0_0_;
                all0_0_ = _e1303 + i0_0_4_.z;
                float _e1306 = all0_0_;
                all0_0_ = _e1306 + i0_0_4_.w;
                float _e1309 = all0_0_;
                all0_0_ = _e1309 + i0_0_5_.x;
                float _e1312 = all0_0_;
                all0_0_ = _e1312 + i0_0_5_.y;
                float _e1315 = all0_0_;
                all0_0_ = _e1315 + i0_0_5_.z;
                float _e1318 = all0_0_;
                all0_0_ = _e1318 + i0_0_5_.w;
                float _e1321 = all0_0_;
                all0_0_ = _e1321 + i0_0_6_.x;
                float _e1324 = all0_0_;
                all0_0_ = _e1324 + i0_0_6_.y;
                float _e1327 = all0_0_;
                all0_0_ = _e1327 + i0_0_6_.z;
                float _e1330 = all0_0_;
                all0_0_ = _e1330 + i0_0_6_.w;
                float _e1333 = all0_0_;
                all0_0_ = _e1333 + i0_0_7_.x;
                float _e1336 = all0_0_;
                all0_0_ = _e1336 + i0_0_7_.y;
                float _e1339 = all0_0_;
                all0_0_ = _e1339 + i0_0_7_.z;
                float _e1342 = all0_0_;
                all0_0_ = _e1342 + i0_0_7_.w;
                dot0_0_ = v0_0_0_ * i0_0_0_.x;
                float _e1349 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e1349);
                float _e1352 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e1352);
                float _e1355 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e1355);
                float _e1358 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e1358);
                float _e1361 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e1361);
                float _e1364 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e1364);
                float _e1367 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e1367);
                float _e1370 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e1370);
                float _e1373 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e1373);
                float _e1376 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e1376);
                float _e1379 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e1379);
                float _e1382 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e1382);
                float _e1385 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e1385);
                float _e1388 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e1388);
                float _e1391 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e1391);
                float _e1394 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_16_, i0_0_4_.x, _e1394);
                float _e1397 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_17_, i0_0_4_.y, _e1397);
                float _e1400 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_18_, i0_0_4_.z, _e1400);
                float _e1403 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_19_, i0_0_4_.w, _e1403);
                float _e1406 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_20_, i0_0_5_.x, _e1406);
                float _e1409 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_21_, i0_0_5_.y, _e1409);
                float _e1412 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_22_, i0_0_5_.z, _e1412);
                float _e1415 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_23_, i0_0_5_.w, _e1415);
                float _e1418 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_24_, i0_0_6_.x, _e1418);
                float _e1421 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_25_, i0_0_6_.y, _e1421);
                float _e1424 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_26_, i0_0_6_.z, _e1424);
                float _e1427 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_27_, i0_0_6_.w, _e1427);
                float _e1430 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_28_, i0_0_7_.x, _e1430);
                float _e1433 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_29_, i0_0_7_.y, _e1433);
                float _e1436 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_30_, i0_0_7_.z, _e1436);
                float _e1439 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_31_, i0_0_7_.w, _e1439);
                float _e1441 = dot0_0_;
                float _e1442 = all0_0_;
                float _e1443 = acc0_;
                acc0_ = metal::fma(_e688, _e1441, metal::fma(_e692, _e1442, _e1443));
                dot1_0_ = v0_1_0_ * i0_0_0_.x;
                float _e1450 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_1_, i0_0_0_.y, _e1450);
                float _e1453 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_2_, i0_0_0_.z, _e1453);
                float _e1456 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_3_, i0_0_0_.w, _e1456);
                float _e1459 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_4_, i0_0_1_.x, _e1459);
                float _e1462 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_5_, i0_0_1_.y, _e1462);
                float _e1465 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_6_, i0_0_1_.z, _e1465);
                float _e1468 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_7_, i0_0_1_.w, _e1468);
                float _e1471 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_8_, i0_0_2_.x, _e1471);
                float _e1474 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_9_, i0_0_2_.y, _e1474);
                float _e1477 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_10_, i0_0_2_.z, _e1477);
                float _e1480 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_11_, i0_0_2_.w, _e1480);
                float _e1483 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_12_, i0_0_3_.x, _e1483);
                float _e1486 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_13_, i0_0_3_.y, _e1486);
                float _e1489 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_14_, i0_0_3_.z, _e1489);
                float _e1492 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_15_, i0_0_3_.w, _e1492);
                float _e1495 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_16_, i0_0_4_.x, _e1495);
                float _e1498 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_17_, i0_0_4_.y, _e1498);
                float _e1501 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_18_, i0_0_4_.z, _e1501);
                float _e1504 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_19_, i0_0_4_.w, _e1504);
                float _e1507 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_20_, i0_0_5_.x, _e1507);
                float _e1510 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_21_, i0_0_5_.y, _e1510);
                float _e1513 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_22_, i0_0_5_.z, _e1513);
                float _e1516 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_23_, i0_0_5_.w, _e1516);
                float _e1519 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_24_, i0_0_6_.x, _e1519);
                float _e1522 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_25_, i0_0_6_.y, _e1522);
                float _e1525 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_26_, i0_0_6_.z, _e1525);
                float _e1528 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_27_, i0_0_6_.w, _e1528);
                float _e1531 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_28_, i0_0_7_.x, _e1531);
                float _e1534 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_29_, i0_0_7_.y, _e1534);
                float _e1537 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_30_, i0_0_7_.z, _e1537);
                float _e1540 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_31_, i0_0_7_.w, _e1540);
                float _e1542 = dot1_0_;
                float _e1543 = all0_0_;
                float _e1544 = acc1_;
                acc1_ = metal::fma(_e700, _e1542, metal::fma(_e704, _e1543, _e1544));
            }
            uint _e1547 = begin;
            uint unit1_2 = (_e1547 + 32u) + lane;
            if (unit1_2 < units) {
                uint column_1 = unit1_2 * 32u;
                uint q0_0_0_1 = u0_0_1_.x;
                uint q0_1_0_1 = u0_0_1_.y;
                uint q0_2_0_1 = u0_0_1_.z;
                uint q0_3_0_1 = u0_0_1_.w;
                float _e1561 = number(sw0_1_, s0_ + (column_1 / 64u));
                float _e1565 = number(bw0_1_, s0_ + (column_1 / 64u));
                uint q1_0_0_1 = u1_0_1_.x;
                uint q1_1_0_1 = u1_0_1_.y;
                uint q1_2_0_1 = u1_0_1_.z;
                uint q1_3_0_1 = u1_0_1_.w;
                float _e1573 = number(sw1_1_, s1_ + (column_1 / 64u));
                float _e1577 = number(bw1_1_, s1_ + (column_1 / 64u));
                uint _e1580 = begin;
                uint local_3 = (column_1 >> 2u) - (_e1580 * 8u);
                uint place_1 = local_3 + (local_3 >> 3u);
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
                metal::float4 i0_0_0_1 = staged.inner[place_1 + 0u];
                metal::float4 i0_0_1_1 = staged.inner[place_1 + 1u];
                metal::float4 i0_0_2_1 = staged.inner[place_1 + 2u];
                metal::float4 i0_0_3_1 = staged.inner[place_1 + 3u];
                metal::float4 i0_0_4_1 = staged.inner[place_1 + 4u];
                metal::float4 i0_0_5_1 = staged.inner[place_1 + 5u];
                metal::float4 i0_0_6_1 = staged.inner[place_1 + 6u];
                metal::float4 i0_0_7_1 = staged.inner[place_1 + 7u];
                all0_0_1 = i0_0_0_1.x;
                float _e2125 = all0_0_1;
                all0_0_1 = _e2125 + i0_0_0_1.y;
                float _e2128 = all0_0_1;
                all0_0_1 = _e2128 + i0_0_0_1.z;
                float _e2131 = all0_0_1;
                all0_0_1 = _e2131 + i0_0_0_1.w;
                float _e2134 = all0_0_1;
                all0_0_1 = _e2134 + i0_0_1_1.x;
                float _e2137 = all0_0_1;
                all0_0_1 = _e2137 + i0_0_1_1.y;
                float _e2140 = all0_0_1;
                all0_0_1 = _e2140 + i0_0_1_1.z;
                float _e2143 = all0_0_1;
                all0_0_1 = _e2143 + i0_0_1_1.w;
                float _e2146 = all0_0_1;
                all0_0_1 = _e2146 + i0_0_2_1.x;
                float _e2149 = all0_0_1;
                all0_0_1 = _e2149 + i0_0_2_1.y;
                float _e2152 = all0_0_1;
                all0_0_1 = _e2152 + i0_0_2_1.z;
                float _e2155 = all0_0_1;
                all0_0_1 = _e2155 + i0_0_2_1.w;
                float _e2158 = all0_0_1;
                all0_0_1 = _e2158 + i0_0_3_1.x;
                float _e2161 = all0_0_1;
                all0_0_1 = _e2161 + i0_0_3_1.y;
                float _e2164 = all0_0_1;
                all0_0_1 = _e2164 + i0_0_3_1.z;
                float _e2167 = all0_0_1;
                all0_0_1 = _e2167 + i0_0_3_1.w;
                float _e2170 = all0_0_1;
                all0_0_1 = _e2170 + i0_0_4_1.x;
                float _e2173 = all0_0_1;
                all0_0_1 = _e2173 + i0_0_4_1.y;
                float _e2176 = all0_0_1;
                all0_0_1 = _e2176 + i0_0_4_1.z;
                float _e2179 = all0_0_1;
                all0_0_1 = _e2179 + i0_0_4_1.w;
                float _e2182 = all0_0_1;
                all0_0_1 = _e2182 + i0_0_5_1.x;
                float _e2185 = all0_0_1;
                all0_0_1 = _e2185 + i0_0_5_1.y;
                float _e2188 = all0_0_1;
                all0_0_1 = _e2188 + i0_0_5_1.z;
                float _e2191 = all0_0_1;
                all0_0_1 = _e2191 + i0_0_5_1.w;
                float _e2194 = all0_0_1;
                all0_0_1 = _e2194 + i0_0_6_1.x;
                float _e2197 = all0_0_1;
                all0_0_1 = _e2197 + i0_0_6_1.y;
                float _e2200 = all0_0_1;
                all0_0_1 = _e2200 + i0_0_6_1.z;
                float _e2203 = all0_0_1;
                all0_0_1 = _e2203 + i0_0_6_1.w;
                float _e2206 = all0_0_1;
                all0_0_1 = _e2206 + i0_0_7_1.x;
                float _e2209 = all0_0_1;
                all0_0_1 = _e2209 + i0_0_7_1.y;
                float _e2212 = all0_0_1;
                all0_0_1 = _e2212 + i0_0_7_1.z;
                float _e2215 = all0_0_1;
                all0_0_1 = _e2215 + i0_0_7_1.w;
                dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                float _e2222 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e2222);
                float _e2225 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e2225);
                float _e2228 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e2228);
                float _e2231 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e2231);
                float _e2234 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e2234);
                float _e2237 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e2237);
                float _e2240 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e2240);
                float _e2243 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e2243);
                float _e2246 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e2246);
                float _e2249 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e2249);
                float _e2252 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e2252);
                float _e2255 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e2255);
                float _e2258 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e2258);
                float _e2261 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e2261);
                float _e2264 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e2264);
                float _e2267 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_16_1, i0_0_4_1.x, _e2267);
                float _e2270 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_17_1, i0_0_4_1.y, _e2270);
                float _e2273 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_18_1, i0_0_4_1.z, _e2273);
                float _e2276 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_19_1, i0_0_4_1.w, _e2276);
                float _e2279 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_20_1, i0_0_5_1.x, _e2279);
                float _e2282 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_21_1, i0_0_5_1.y, _e2282);
                float _e2285 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_22_1, i0_0_5_1.z, _e2285);
                float _e2288 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_23_1, i0_0_5_1.w, _e2288);
                float _e2291 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_24_1, i0_0_6_1.x, _e2291);
                float _e2294 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_25_1, i0_0_6_1.y, _e2294);
                float _e2297 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_26_1, i0_0_6_1.z, _e2297);
                float _e2300 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_27_1, i0_0_6_1.w, _e2300);
                float _e2303 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_28_1, i0_0_7_1.x, _e2303);
                float _e2306 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_29_1, i0_0_7_1.y, _e2306);
                float _e2309 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_30_1, i0_0_7_1.z, _e2309);
                float _e2312 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_31_1, i0_0_7_1.w, _e2312);
                float _e2314 = dot0_0_1;
                float _e2315 = all0_0_1;
                float _e2316 = acc0_;
                acc0_ = metal::fma(_e1561, _e2314, metal::fma(_e1565, _e2315, _e2316));
                dot1_0_1 = v0_1_0_1 * i0_0_0_1.x;
                float _e2323 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_1_1, i0_0_0_1.y, _e2323);
                float _e2326 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_2_1, i0_0_0_1.z, _e2326);
                float _e2329 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_3_1, i0_0_0_1.w, _e2329);
                float _e2332 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_4_1, i0_0_1_1.x, _e2332);
                float _e2335 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_5_1, i0_0_1_1.y, _e2335);
                float _e2338 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_6_1, i0_0_1_1.z, _e2338);
                float _e2341 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_7_1, i0_0_1_1.w, _e2341);
                float _e2344 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_8_1, i0_0_2_1.x, _e2344);
                float _e2347 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_9_1, i0_0_2_1.y, _e2347);
                float _e2350 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_10_1, i0_0_2_1.z, _e2350);
                float _e2353 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_11_1, i0_0_2_1.w, _e2353);
                float _e2356 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_12_1, i0_0_3_1.x, _e2356);
                float _e2359 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_13_1, i0_0_3_1.y, _e2359);
                float _e2362 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_14_1, i0_0_3_1.z, _e2362);
                float _e2365 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_15_1, i0_0_3_1.w, _e2365);
                float _e2368 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_16_1, i0_0_4_1.x, _e2368);
                float _e2371 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_17_1, i0_0_4_1.y, _e2371);
                float _e2374 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_18_1, i0_0_4_1.z, _e2374);
                float _e2377 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_19_1, i0_0_4_1.w, _e2377);
                float _e2380 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_20_1, i0_0_5_1.x, _e2380);
                float _e2383 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_21_1, i0_0_5_1.y, _e2383);
                float _e2386 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_22_1, i0_0_5_1.z, _e2386);
                float _e2389 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_23_1, i0_0_5_1.w, _e2389);
                float _e2392 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_24_1, i0_0_6_1.x, _e2392);
                float _e2395 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_25_1, i0_0_6_1.y, _e2395);
                float _e2398 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_26_1, i0_0_6_1.z, _e2398);
                float _e2401 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_27_1, i0_0_6_1.w, _e2401);
                float _e2404 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_28_1, i0_0_7_1.x, _e2404);
                float _e2407 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_29_1, i0_0_7_1.y, _e2407);
                float _e2410 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_30_1, i0_0_7_1.z, _e2410);
                float _e2413 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_31_1, i0_0_7_1.w, _e2413);
                float _e2415 = dot1_0_1;
                float _e2416 = all0_0_1;
                float _e2417 = acc1_;
                acc1_ = metal::fma(_e1573, _e2415, metal::fma(_e1577, _e2416, _e2417));
            }
        }
    }
    float _e2432 = acc0_;
    sums.inner[(((team * 2u) + 0u) * 32u) + lane] = _e2432;
    float _e2442 = acc1_;
    sums.inner[(((team * 2u) + 1u) * 32u) + lane] = _e2442;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e2468 = sums.inner[at];
        float _e2473 = sums.inner[at + 1u];
        float _e2479 = sums.inner[at + 2u];
        float _e2484 = sums.inner[at + 3u];
        float _e2491 = sums.inner[at + 4u];
        float _e2496 = sums.inner[at + 5u];
        float _e2502 = sums.inner[at + 6u];
        float _e2507 = sums.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e2468 + _e2473) + (_e2479 + _e2484)) + ((_e2491 + _e2496) + (_e2502 + _e2507));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_1 = ((team * 2u) + lane) * 4u;
        float _e2520 = part.inner[at_1];
        float _e2525 = part.inner[at_1 + 1u];
        float _e2531 = part.inner[at_1 + 2u];
        float _e2536 = part.inner[at_1 + 3u];
        float sum = (_e2520 + _e2525) + (_e2531 + _e2536);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        uint row = first_1 + r;
        uint _e2546 = rows;
        if (row < _e2546) {
            uint _e2548 = which;
            switch(_e2548) {
                case 1u: {
                    y1_[row] = sum;
                    return;
                }
                default: {
                    y0_[row] = sum;
                    return;
                }
            }
        } else {
            return;
        }
    } else {
        return;
    }
}
