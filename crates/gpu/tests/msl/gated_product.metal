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
};

typedef metal::uint4 type_2[1];
typedef uint type_3[1];
typedef metal::float4 type_6[1];
typedef float type_7[1];
struct Parameters {
    uint rows;
    uint columns;
    uint row_words;
    uint row_groups;
    uint width;
    uint epsilon;
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
struct type_12 {
    float inner[128];
};

float number(
    uint word,
    uint index
) {
    return as_type<float>((word >> ((index & 1u) * 16u)) << 16u);
}

float pair_of(
    uint begin_1,
    uint at,
    uint width,
    threadgroup type_8& staged
) {
    if (at >= width) {
        return 0.0;
    }
    uint low = begin_1 + at;
    uint high = low + 16u;
    float _e15 = staged.inner[low >> 2u][low & 3u];
    float _e23 = staged.inner[high >> 2u][high & 3u];
    return _e15 + _e23;
}

metal::float4 silu(
    metal::float4 z
) {
    return z / (metal::float4(1.0) + metal::exp(-(z)));
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& w0_ [[buffer(1)]]
, device type_3 const& scales0_ [[buffer(2)]]
, device type_3 const& biases0_ [[buffer(3)]]
, device type_6 const& x [[buffer(4)]]
, device type_6 const& weight [[buffer(5)]]
, device type_6 const& gate [[buffer(6)]]
, device type_7& y [[buffer(7)]]
, device type_3 const& control [[buffer(8)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& staged
, threadgroup type_9& sums
, threadgroup type_10& part
, threadgroup type_11& red
, threadgroup type_12& factors
, constant _mslBufferSizes& _buffer_sizes [[buffer(9)]]
) {
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
    uint some = 0u;
    uint i = {};
    bool local = {};
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
    uint first = ((wid.x * 8u) + team) * 2u;
    uint _e28 = p.rows;
    uint row0_ = metal::min(first + 0u, _e28 - 1u);
    uint _e36 = p.rows;
    uint row1_ = metal::min(first + 1u, _e36 - 1u);
    uint _e42 = p.row_words;
    uint w0_1 = row0_ * _e42;
    uint _e46 = p.row_groups;
    uint s0_ = row0_ * _e46;
    uint _e50 = p.row_words;
    uint w1_ = row1_ * _e50;
    uint _e54 = p.row_groups;
    uint s1_ = row1_ * _e54;
    {
        uint unit0_ = metal::min((0u + 0u) + lane, units - 1u);
        uint unit1_ = metal::min((0u + 32u) + lane, units - 1u);
        metal::uint4 _e86 = w0_[(w0_1 / 4u) + unit0_];
        n_u0_0_0_ = _e86;
        uint _e96 = scales0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
        n_sw0_0_ = _e96;
        uint _e106 = biases0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
        n_bw0_0_ = _e106;
        metal::uint4 _e112 = w0_[(w1_ / 4u) + unit0_];
        n_u1_0_0_ = _e112;
        uint _e122 = scales0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
        n_sw1_0_ = _e122;
        uint _e132 = biases0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
        n_bw1_0_ = _e132;
        metal::uint4 _e138 = w0_[(w0_1 / 4u) + unit1_];
        n_u0_0_1_ = _e138;
        uint _e148 = scales0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
        n_sw0_1_ = _e148;
        uint _e158 = biases0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
        n_bw0_1_ = _e158;
        metal::uint4 _e164 = w0_[(w1_ / 4u) + unit1_];
        n_u1_0_1_ = _e164;
        uint _e174 = scales0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
        n_sw1_1_ = _e174;
        uint _e184 = biases0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
        n_bw1_1_ = _e184;
    }
    if (stopped != 0u) {
        return;
    }
    uint _e189 = p.columns;
    uint _e192 = p.width;
    uint heads = _e189 / _e192;
    uint _e196 = p.width;
    uint quads = _e196 >> 2u;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e383 = some;
            some = _e383 + 16u;
        }
        loop_init = false;
        uint _e201 = some;
        if (_e201 < heads) {
        } else {
            break;
        }
        {
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e204 = some;
            uint end = metal::min(16u, heads - _e204) * quads;
            i = lid;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e224 = i;
                    i = _e224 + 256u;
                }
                loop_init_1 = false;
                uint _e209 = i;
                if (_e209 < end) {
                } else {
                    break;
                }
                {
                    uint _e212 = some;
                    uint _e214 = i;
                    metal::float4 four = x[(_e212 * quads) + _e214];
                    uint _e219 = i;
                    staged.inner[_e219] = metal::fma(four, four, metal::float4(0.0));
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e227 = some;
            uint head = _e227 + (lid >> 4u);
            if (head < heads) {
                uint _e236 = p.width;
                uint begin_2 = ((lid >> 4u) * _e236) + (lid & 15u);
                uint _e244 = p.width;
                float _e245 = pair_of(begin_2, 0u, _e244, staged);
                uint _e249 = p.width;
                float _e250 = pair_of(begin_2, 32u, _e249, staged);
                float a = _e245 + _e250;
                uint _e255 = p.width;
                float _e256 = pair_of(begin_2, 64u, _e255, staged);
                uint _e260 = p.width;
                float _e261 = pair_of(begin_2, 96u, _e260, staged);
                float b = _e256 + _e261;
                red.inner[lid] = a + b;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (head < heads) {
                local = (lid & 15u) == 0u;
            } else {
                local = false;
            }
            bool _e274 = local;
            if (_e274) {
                float _e277 = red.inner[lid];
                float _e282 = red.inner[lid + 1u];
                float _e288 = red.inner[lid + 2u];
                float _e293 = red.inner[lid + 3u];
                float a_1 = (_e277 + _e282) + (_e288 + _e293);
                float _e300 = red.inner[lid + 4u];
                float _e305 = red.inner[lid + 5u];
                float _e311 = red.inner[lid + 6u];
                float _e316 = red.inner[lid + 7u];
                float b_1 = (_e300 + _e305) + (_e311 + _e316);
                float _e323 = red.inner[lid + 8u];
                float _e328 = red.inner[lid + 9u];
                float _e334 = red.inner[lid + 10u];
                float _e339 = red.inner[lid + 11u];
                float c = (_e323 + _e328) + (_e334 + _e339);
                float _e346 = red.inner[lid + 12u];
                float _e351 = red.inner[lid + 13u];
                float _e357 = red.inner[lid + 14u];
                float _e362 = red.inner[lid + 15u];
                float d = (_e346 + _e351) + (_e357 + _e362);
                float squares = (a_1 + b_1) + (c + d);
                uint _e372 = p.width;
                uint _e377 = p.epsilon;
                factors.inner[head] = 1.0 / metal::sqrt((squares / static_cast<float>(_e372)) + as_type<float>(_e377));
            }
        }
    }
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e2321 = begin;
            begin = _e2321 + 64u;
        }
        loop_init_2 = false;
        uint _e388 = begin;
        if (_e388 < units) {
        } else {
            break;
        }
        {
            uint _e390 = begin;
            if (_e390 > 0u) {
                uint next = begin;
                uint unit0_1 = metal::min((next + 0u) + lane, units - 1u);
                uint unit1_1 = metal::min((next + 32u) + lane, units - 1u);
                metal::uint4 _e411 = w0_[(w0_1 / 4u) + unit0_1];
                n_u0_0_0_ = _e411;
                uint _e421 = scales0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e421;
                uint _e431 = biases0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e431;
                metal::uint4 _e437 = w0_[(w1_ / 4u) + unit0_1];
                n_u1_0_0_ = _e437;
                uint _e447 = scales0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e447;
                uint _e457 = biases0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e457;
                metal::uint4 _e463 = w0_[(w0_1 / 4u) + unit1_1];
                n_u0_0_1_ = _e463;
                uint _e473 = scales0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e473;
                uint _e483 = biases0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e483;
                metal::uint4 _e489 = w0_[(w1_ / 4u) + unit1_1];
                n_u1_0_1_ = _e489;
                uint _e499 = scales0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e499;
                uint _e509 = biases0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e509;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e510 = begin;
            uint _e517 = p.columns;
            uint vec_end = metal::min((_e510 + 64u) * 8u, _e517 >> 2u);
            uint _e521 = begin;
            vec_at = (_e521 * 8u) + lid;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e560 = vec_at;
                    vec_at = _e560 + 256u;
                }
                loop_init_3 = false;
                uint _e526 = vec_at;
                if (_e526 < vec_end) {
                } else {
                    break;
                }
                {
                    uint _e528 = vec_at;
                    uint _e529 = begin;
                    uint local_1 = _e528 - (_e529 * 8u);
                    uint _e539 = vec_at;
                    metal::float4 _e541 = x[_e539];
                    uint _e543 = vec_at;
                    float _e546 = factors.inner[_e543 / quads];
                    uint _e549 = vec_at;
                    metal::float4 _e552 = weight[_e549 % quads];
                    uint _e555 = vec_at;
                    metal::float4 _e557 = gate[_e555];
                    metal::float4 _e558 = silu(_e557);
                    staged.inner[local_1 + (local_1 >> 3u)] = ((_e541 * _e546) * _e552) * _e558;
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
            uint _e575 = begin;
            uint unit0_2 = (_e575 + 0u) + lane;
            if (unit0_2 < units) {
                uint column = unit0_2 * 32u;
                uint q0_0_0_ = u0_0_0_.x;
                uint q0_1_0_ = u0_0_0_.y;
                uint q0_2_0_ = u0_0_0_.z;
                uint q0_3_0_ = u0_0_0_.w;
                float _e589 = number(sw0_0_, s0_ + (column / 64u));
                float _e593 = number(bw0_0_, s0_ + (column / 64u));
                uint q1_0_0_ = u1_0_0_.x;
                uint q1_1_0_ = u1_0_0_.y;
                uint q1_2_0_ = u1_0_0_.z;
                uint q1_3_0_ = u1_0_0_.w;
                float _e601 = number(sw1_0_, s1_ + (column / 64u));
                float _e605 = number(bw1_0_, s1_ + (column / 64u));
                uint _e608 = begin;
                uint local_2 = (column >> 2u) - (_e608 * 8u);
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
                float _e1153 = all0_0_;
                all0_0_ = _e1153 + i0_0_0_.y;
                float _e1156 = all0_0_;
                all0_0_ = _e1156 + i0_0_0_.z;
                float _e1159 = all0_0_;
                all0_0_ = _e1159 + i0_0_0_.w;
                float _e1162 = all0_0_;
                all0_0_ = _e1162 + i0_0_1_.x;
                float _e1165 = all0_0_;
                all0_0_ = _e1165 + i0_0_1_.y;
                float _e1168 = all0_0_;
                all0_0_ = _e1168 + i0_0_1_.z;
                float _e1171 = all0_0_;
                all0_0_ = _e1171 + i0_0_1_.w;
                float _e1174 = all0_0_;
                all0_0_ = _e1174 + i0_0_2_.x;
                float _e1177 = all0_0_;
                all0_0_ = _e1177 + i0_0_2_.y;
                float _e1180 = all0_0_;
                all0_0_ = _e1180 + i0_0_2_.z;
                float _e1183 = all0_0_;
                all0_0_ = _e1183 + i0_0_2_.w;
                float _e1186 = all0_0_;
                all0_0_ = _e1186 + i0_0_3_.x;
                float _e1189 = all0_0_;
                all0_0_ = _e1189 + i0_0_3_.y;
                float _e1192 = all0_0_;
                all0_0_ = _e1192 + i0_0_3_.z;
                float _e1195 = all0_0_;
                all0_0_ = _e1195 + i0_0_3_.w;
                float _e1198 = all0_0_;
                all0_0_ = _e1198 + i0_0_4_.x;
                float _e1201 = all0_0_;
                all0_0_ = _e1201 + i0_0_4_.y;
                float _e1204 = all0_0_;
                all0_0_ = _e1204 + i0_0_4_.z;
                float _e1207 = all0_0_;
                all0_0_ = _e1207 + i0_0_4_.w;
                float _e1210 = all0_0_;
                all0_0_ = _e1210 + i0_0_5_.x;
                float _e1213 = all0_0_;
                all0_0_ = _e1213 + i0_0_5_.y;
                float _e1216 = all0_0_;
                all0_0_ = _e1216 + i0_0_5_.z;
                float _e1219 = all0_0_;
                all0_0_ = _e1219 + i0_0_5_.w;
                float _e1222 = all0_0_;
                all0_0_ = _e1222 + i0_0_6_.x;
                float _e1225 = all0_0_;
                all0_0_ = _e1225 + i0_0_6_.y;
                float _e1228 = all0_0_;
                all0_0_ = _e1228 + i0_0_6_.z;
                float _e1231 = all0_0_;
                all0_0_ = _e1231 + i0_0_6_.w;
                float _e1234 = all0_0_;
                all0_0_ = _e1234 + i0_0_7_.x;
                float _e1237 = all0_0_;
                all0_0_ = _e1237 + i0_0_7_.y;
                float _e1240 = all0_0_;
                all0_0_ = _e1240 + i0_0_7_.z;
                float _e1243 = all0_0_;
                all0_0_ = _e1243 + i0_0_7_.w;
                dot0_0_ = v0_0_0_ * i0_0_0_.x;
                float _e1250 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e1250);
                float _e1253 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e1253);
                float _e1256 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e1256);
                float _e1259 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e1259);
                float _e1262 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e1262);
                float _e1265 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e1265);
                float _e1268 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e1268);
                float _e1271 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e1271);
                float _e1274 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e1274);
                float _e1277 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e1277);
                float _e1280 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e1280);
                float _e1283 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e1283);
                float _e1286 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e1286);
                float _e1289 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e1289);
                float _e1292 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e1292);
                float _e1295 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_16_, i0_0_4_.x, _e1295);
                float _e1298 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_17_, i0_0_4_.y, _e1298);
                float _e1301 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_18_, i0_0_4_.z, _e1301);
                float _e1304 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_19_, i0_0_4_.w, _e1304);
                float _e1307 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_20_, i0_0_5_.x, _e1307);
                float _e1310 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_21_, i0_0_5_.y, _e1310);
                float _e1313 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_22_, i0_0_5_.z, _e1313);
                float _e1316 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_23_, i0_0_5_.w, _e1316);
                float _e1319 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_24_, i0_0_6_.x, _e1319);
                float _e1322 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_25_, i0_0_6_.y, _e1322);
                float _e1325 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_26_, i0_0_6_.z, _e1325);
                float _e1328 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_27_, i0_0_6_.w, _e1328);
                float _e1331 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_28_, i0_0_7_.x, _e1331);
                float _e1334 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_29_, i0_0_7_.y, _e1334);
                float _e1337 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_30_, i0_0_7_.z, _e1337);
                float _e1340 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_31_, i0_0_7_.w, _e1340);
                float _e1342 = dot0_0_;
                float _e1343 = all0_0_;
                float _e1344 = acc0_;
                acc0_ = metal::fma(_e589, _e1342, metal::fma(_e593, _e1343, _e1344));
                dot1_0_ = v0_1_0_ * i0_0_0_.x;
                float _e1351 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_1_, i0_0_0_.y, _e1351);
                float _e1354 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_2_, i0_0_0_.z, _e1354);
                float _e1357 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_3_, i0_0_0_.w, _e1357);
                float _e1360 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_4_, i0_0_1_.x, _e1360);
                float _e1363 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_5_, i0_0_1_.y, _e1363);
                float _e1366 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_6_, i0_0_1_.z, _e1366);
                float _e1369 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_7_, i0_0_1_.w, _e1369);
                float _e1372 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_8_, i0_0_2_.x, _e1372);
                float _e1375 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_9_, i0_0_2_.y, _e1375);
                float _e1378 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_10_, i0_0_2_.z, _e1378);
                float _e1381 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_11_, i0_0_2_.w, _e1381);
                float _e1384 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_12_, i0_0_3_.x, _e1384);
                float _e1387 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_13_, i0_0_3_.y, _e1387);
                float _e1390 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_14_, i0_0_3_.z, _e1390);
                float _e1393 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_15_, i0_0_3_.w, _e1393);
                float _e1396 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_16_, i0_0_4_.x, _e1396);
                float _e1399 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_17_, i0_0_4_.y, _e1399);
                float _e1402 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_18_, i0_0_4_.z, _e1402);
                float _e1405 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_19_, i0_0_4_.w, _e1405);
                float _e1408 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_20_, i0_0_5_.x, _e1408);
                float _e1411 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_21_, i0_0_5_.y, _e1411);
                float _e1414 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_22_, i0_0_5_.z, _e1414);
                float _e1417 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_23_, i0_0_5_.w, _e1417);
                float _e1420 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_24_, i0_0_6_.x, _e1420);
                float _e1423 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_25_, i0_0_6_.y, _e1423);
                float _e1426 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_26_, i0_0_6_.z, _e1426);
                float _e1429 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_27_, i0_0_6_.w, _e1429);
                float _e1432 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_28_, i0_0_7_.x, _e1432);
                float _e1435 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_29_, i0_0_7_.y, _e1435);
                float _e1438 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_30_, i0_0_7_.z, _e1438);
                float _e1441 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_31_, i0_0_7_.w, _e1441);
                float _e1443 = dot1_0_;
                float _e1444 = all0_0_;
                float _e1445 = acc1_;
                acc1_ = metal::fma(_e601, _e1443, metal::fma(_e605, _e1444, _e1445));
            }
            uint _e1448 = begin;
            uint unit1_2 = (_e1448 + 32u) + lane;
            if (unit1_2 < units) {
                uint column_1 = unit1_2 * 32u;
                uint q0_0_0_1 = u0_0_1_.x;
                uint q0_1_0_1 = u0_0_1_.y;
                uint q0_2_0_1 = u0_0_1_.z;
                uint q0_3_0_1 = u0_0_1_.w;
                float _e1462 = number(sw0_1_, s0_ + (column_1 / 64u));
                float _e1466 = number(bw0_1_, s0_ + (column_1 / 64u));
                uint q1_0_0_1 = u1_0_1_.x;
                uint q1_1_0_1 = u1_0_1_.y;
                uint q1_2_0_1 = u1_0_1_.z;
                uint q1_3_0_1 = u1_0_1_.w;
                float _e1474 = number(sw1_1_, s1_ + (column_1 / 64u));
                float _e1478 = number(bw1_1_, s1_ + (column_1 / 64u));
                uint _e1481 = begin;
                uint local_3 = (column_1 >> 2u) - (_e1481 * 8u);
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
                float _e2026 = all0_0_1;
                all0_0_1 = _e2026 + i0_0_0_1.y;
                float _e2029 = all0_0_1;
                all0_0_1 = _e2029 + i0_0_0_1.z;
                float _e2032 = all0_0_1;
                all0_0_1 = _e2032 + i0_0_0_1.w;
                float _e2035 = all0_0_1;
                all0_0_1 = _e2035 + i0_0_1_1.x;
                float _e2038 = all0_0_1;
                all0_0_1 = _e2038 + i0_0_1_1.y;
                float _e2041 = all0_0_1;
                all0_0_1 = _e2041 + i0_0_1_1.z;
                float _e2044 = all0_0_1;
                all0_0_1 = _e2044 + i0_0_1_1.w;
                float _e2047 = all0_0_1;
                all0_0_1 = _e2047 + i0_0_2_1.x;
                float _e2050 = all0_0_1;
                all0_0_1 = _e2050 + i0_0_2_1.y;
                float _e2053 = all0_0_1;
                all0_0_1 = _e2053 + i0_0_2_1.z;
                float _e2056 = all0_0_1;
                all0_0_1 = _e2056 + i0_0_2_1.w;
                float _e2059 = all0_0_1;
                all0_0_1 = _e2059 + i0_0_3_1.x;
                float _e2062 = all0_0_1;
                all0_0_1 = _e2062 + i0_0_3_1.y;
                float _e2065 = all0_0_1;
                all0_0_1 = _e2065 + i0_0_3_1.z;
                float _e2068 = all0_0_1;
                all0_0_1 = _e2068 + i0_0_3_1.w;
                float _e2071 = all0_0_1;
                all0_0_1 = _e2071 + i0_0_4_1.x;
                float _e2074 = all0_0_1;
                all0_0_1 = _e2074 + i0_0_4_1.y;
                float _e2077 = all0_0_1;
                all0_0_1 = _e2077 + i0_0_4_1.z;
                float _e2080 = all0_0_1;
                all0_0_1 = _e2080 + i0_0_4_1.w;
                float _e2083 = all0_0_1;
                all0_0_1 = _e2083 + i0_0_5_1.x;
                float _e2086 = all0_0_1;
                all0_0_1 = _e2086 + i0_0_5_1.y;
                float _e2089 = all0_0_1;
                all0_0_1 = _e2089 + i0_0_5_1.z;
                float _e2092 = all0_0_1;
                all0_0_1 = _e2092 + i0_0_5_1.w;
                float _e2095 = all0_0_1;
                all0_0_1 = _e2095 + i0_0_6_1.x;
                float _e2098 = all0_0_1;
                all0_0_1 = _e2098 + i0_0_6_1.y;
                float _e2101 = all0_0_1;
                all0_0_1 = _e2101 + i0_0_6_1.z;
                float _e2104 = all0_0_1;
                all0_0_1 = _e2104 + i0_0_6_1.w;
                float _e2107 = all0_0_1;
                all0_0_1 = _e2107 + i0_0_7_1.x;
                float _e2110 = all0_0_1;
                all0_0_1 = _e2110 + i0_0_7_1.y;
                float _e2113 = all0_0_1;
                all0_0_1 = _e2113 + i0_0_7_1.z;
                float _e2116 = all0_0_1;
                all0_0_1 = _e2116 + i0_0_7_1.w;
                dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                float _e2123 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e2123);
                float _e2126 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e2126);
                float _e2129 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e2129);
                float _e2132 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e2132);
                float _e2135 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e2135);
                float _e2138 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e2138);
                float _e2141 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e2141);
                float _e2144 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e2144);
                float _e2147 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e2147);
                float _e2150 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e2150);
                float _e2153 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e2153);
                float _e2156 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e2156);
                float _e2159 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e2159);
                float _e2162 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e2162);
                float _e2165 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e2165);
                float _e2168 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_16_1, i0_0_4_1.x, _e2168);
                float _e2171 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_17_1, i0_0_4_1.y, _e2171);
                float _e2174 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_18_1, i0_0_4_1.z, _e2174);
                float _e2177 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_19_1, i0_0_4_1.w, _e2177);
                float _e2180 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_20_1, i0_0_5_1.x, _e2180);
                float _e2183 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_21_1, i0_0_5_1.y, _e2183);
                float _e2186 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_22_1, i0_0_5_1.z, _e2186);
                float _e2189 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_23_1, i0_0_5_1.w, _e2189);
                float _e2192 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_24_1, i0_0_6_1.x, _e2192);
                float _e2195 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_25_1, i0_0_6_1.y, _e2195);
                float _e2198 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_26_1, i0_0_6_1.z, _e2198);
                float _e2201 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_27_1, i0_0_6_1.w, _e2201);
                float _e2204 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_28_1, i0_0_7_1.x, _e2204);
                float _e2207 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_29_1, i0_0_7_1.y, _e2207);
                float _e2210 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_30_1, i0_0_7_1.z, _e2210);
                float _e2213 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_31_1, i0_0_7_1.w, _e2213);
                float _e2215 = dot0_0_1;
                float _e2216 = all0_0_1;
                float _e2217 = acc0_;
                acc0_ = metal::fma(_e1462, _e2215, metal::fma(_e1466, _e2216, _e2217));
                dot1_0_1 = v0_1_0_1 * i0_0_0_1.x;
                float _e2224 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_1_1, i0_0_0_1.y, _e2224);
                float _e2227 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_2_1, i0_0_0_1.z, _e2227);
                float _e2230 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_3_1, i0_0_0_1.w, _e2230);
                float _e2233 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_4_1, i0_0_1_1.x, _e2233);
                float _e2236 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_5_1, i0_0_1_1.y, _e2236);
                float _e2239 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_6_1, i0_0_1_1.z, _e2239);
                float _e2242 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_7_1, i0_0_1_1.w, _e2242);
                float _e2245 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_8_1, i0_0_2_1.x, _e2245);
                float _e2248 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_9_1, i0_0_2_1.y, _e2248);
                float _e2251 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_10_1, i0_0_2_1.z, _e2251);
                float _e2254 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_11_1, i0_0_2_1.w, _e2254);
                float _e2257 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_12_1, i0_0_3_1.x, _e2257);
                float _e2260 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_13_1, i0_0_3_1.y, _e2260);
                float _e2263 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_14_1, i0_0_3_1.z, _e2263);
                float _e2266 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_15_1, i0_0_3_1.w, _e2266);
                float _e2269 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_16_1, i0_0_4_1.x, _e2269);
                float _e2272 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_17_1, i0_0_4_1.y, _e2272);
                float _e2275 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_18_1, i0_0_4_1.z, _e2275);
                float _e2278 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_19_1, i0_0_4_1.w, _e2278);
                float _e2281 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_20_1, i0_0_5_1.x, _e2281);
                float _e2284 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_21_1, i0_0_5_1.y, _e2284);
                float _e2287 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_22_1, i0_0_5_1.z, _e2287);
                float _e2290 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_23_1, i0_0_5_1.w, _e2290);
                float _e2293 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_24_1, i0_0_6_1.x, _e2293);
                float _e2296 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_25_1, i0_0_6_1.y, _e2296);
                float _e2299 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_26_1, i0_0_6_1.z, _e2299);
                float _e2302 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_27_1, i0_0_6_1.w, _e2302);
                float _e2305 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_28_1, i0_0_7_1.x, _e2305);
                float _e2308 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_29_1, i0_0_7_1.y, _e2308);
                float _e2311 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_30_1, i0_0_7_1.z, _e2311);
                float _e2314 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_31_1, i0_0_7_1.w, _e2314);
                float _e2316 = dot1_0_1;
                float _e2317 = all0_0_1;
                float _e2318 = acc1_;
                acc1_ = metal::fma(_e1474, _e2316, metal::fma(_e1478, _e2317, _e2318));
            }
        }
    }
    float _e2333 = acc0_;
    sums.inner[(((team * 2u) + 0u) * 32u) + lane] = _e2333;
    float _e2343 = acc1_;
    sums.inner[(((team * 2u) + 1u) * 32u) + lane] = _e2343;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at_1 = (slot * 32u) + ((lane & 3u) * 8u);
        float _e2369 = sums.inner[at_1];
        float _e2374 = sums.inner[at_1 + 1u];
        float _e2380 = sums.inner[at_1 + 2u];
        float _e2385 = sums.inner[at_1 + 3u];
        float _e2392 = sums.inner[at_1 + 4u];
        float _e2397 = sums.inner[at_1 + 5u];
        float _e2403 = sums.inner[at_1 + 6u];
        float _e2408 = sums.inner[at_1 + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e2369 + _e2374) + (_e2380 + _e2385)) + ((_e2392 + _e2397) + (_e2403 + _e2408));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_2 = ((team * 2u) + lane) * 4u;
        float _e2421 = part.inner[at_2];
        float _e2426 = part.inner[at_2 + 1u];
        float _e2432 = part.inner[at_2 + 2u];
        float _e2437 = part.inner[at_2 + 3u];
        float sum = (_e2421 + _e2426) + (_e2432 + _e2437);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        uint row = first + r;
        uint _e2449 = p.rows;
        if (row < _e2449) {
            float _e2455 = y[row];
            y[row] = _e2455 + sum;
            return;
        } else {
            return;
        }
    } else {
        return;
    }
}
