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

typedef metal::uint2 type_2[1];
typedef uint type_3[1];
typedef float type_5[1];
typedef metal::float4 type_7[1];
struct Parameters {
    uint rows;
    uint columns;
    uint row_words;
    uint row_groups;
    uint slot_words;
    uint w0_;
    uint s0_;
    uint b0_;
    uint k;
    uint first_id;
    uint table_start;
};
struct type_8 {
    float inner[132];
};
struct type_9 {
    float inner[32];
};
struct type_10 {
    float inner[1024];
};
struct type_11 {
    float inner[128];
};

float number(
    uint word,
    uint index
) {
    return as_type<float>((word >> ((index & 1u) * 16u)) << 16u);
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& slab0_ [[buffer(1)]]
, device type_2 const& slab1_ [[buffer(2)]]
, device type_3 const& table [[buffer(3)]]
, device type_3 const& ids [[buffer(4)]]
, device type_5 const& weights [[buffer(5)]]
, device type_7 const& x [[buffer(6)]]
, device type_2 const& w0_ [[buffer(7)]]
, device type_3 const& scales0_ [[buffer(8)]]
, device type_3 const& biases0_ [[buffer(9)]]
, device type_5 const& factor [[buffer(10)]]
, device type_5& y [[buffer(11)]]
, device type_3 const& control [[buffer(12)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& found
, threadgroup type_9& weight_of
, threadgroup type_10& sums
, threadgroup type_11& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(13)]]
) {
    float before = 0.0;
    bool local = {};
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    float acc2_ = 0.0;
    float acc3_ = 0.0;
    uint next = 0u;
    float always = 0.0;
    float acc0_1 = 0.0;
    uint unit0_ = {};
    metal::uint2 n_u0_0_0_ = {};
    uint n_sw0_0_ = {};
    uint n_bw0_0_ = {};
    float all0_0_ = {};
    float dot0_0_ = {};
    uint turn = 0u;
    uint unit0_1 = {};
    metal::uint2 n_u0_0_0_1 = {};
    uint n_sw0_0_1 = {};
    uint n_bw0_0_1 = {};
    metal::uint2 n_u1_0_0_ = {};
    uint n_sw1_0_ = {};
    uint n_bw1_0_ = {};
    metal::uint2 n_u2_0_0_ = {};
    uint n_sw2_0_ = {};
    uint n_bw2_0_ = {};
    metal::uint2 n_u3_0_0_ = {};
    uint n_sw3_0_ = {};
    uint n_bw3_0_ = {};
    float all0_0_1 = {};
    float dot0_0_1 = {};
    float dot1_0_ = {};
    float dot2_0_ = {};
    float dot3_0_ = {};
    float acc0_2 = {};
    bool local_1 = {};
    float all = 0.0;
    uint rank = 0u;
    uint stopped = control[0];
    uint _e8 = p.k;
    float own_weight = weights[metal::min(lid, _e8 - 1u)];
    uint first = wid.x * 4u;
    if (lid < 4u) {
        uint _e26 = p.rows;
        local = (first + lid) < _e26;
    } else {
        local = false;
    }
    bool _e29 = local;
    if (_e29) {
        float _e33 = y[first + lid];
        before = _e33;
    }
    if (stopped != 0u) {
        return;
    }
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint _e42 = p.columns;
    uint units = _e42 / 16u;
    uint _e57 = p.k;
    if (team < _e57) {
        uint _e62 = p.table_start;
        uint _e66 = p.first_id;
        uint _e69 = ids[_e66 + team];
        uint _e72 = table[_e62 + _e69];
        next = _e72;
    }
    float own_factor = factor[0];
    if (team < 4u) {
        uint _e83 = p.rows;
        uint row0_ = metal::min(first + team, _e83 - 1u);
        uint _e89 = p.row_words;
        uint w0_1 = row0_ * _e89;
        uint _e93 = p.row_groups;
        uint s0_ = row0_ * _e93;
        uint _e97 = p.k;
        uint _e100 = p.columns;
        uint x0_ = _e97 * _e100;
        unit0_ = lane;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e414 = unit0_;
                unit0_ = _e414 + 32u;
            }
            loop_init = false;
            uint _e105 = unit0_;
            if (_e105 < units) {
            } else {
                break;
            }
            {
                n_u0_0_0_ = metal::uint2 {};
                n_sw0_0_ = uint {};
                n_bw0_0_ = uint {};
                uint _e116 = unit0_;
                metal::uint2 _e119 = w0_[(w0_1 / 2u) + _e116];
                n_u0_0_0_ = _e119;
                uint _e121 = unit0_;
                uint _e130 = scales0_[(s0_ + ((_e121 * 16u) / 64u)) >> 1u];
                n_sw0_0_ = _e130;
                uint _e132 = unit0_;
                uint _e141 = biases0_[(s0_ + ((_e132 * 16u) / 64u)) >> 1u];
                n_bw0_0_ = _e141;
                metal::uint2 u0_0_0_ = n_u0_0_0_;
                uint sw0_0_ = n_sw0_0_;
                uint bw0_0_ = n_bw0_0_;
                uint _e145 = unit0_;
                uint column = _e145 * 16u;
                uint q0_0_0_ = u0_0_0_.x;
                uint q0_1_0_ = u0_0_0_.y;
                float _e153 = number(sw0_0_, s0_ + (column / 64u));
                float _e157 = number(bw0_0_, s0_ + (column / 64u));
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
                metal::float4 i0_0_0_ = x[((x0_ + column) >> 2u) + 0u];
                metal::float4 i0_0_1_ = x[((x0_ + column) >> 2u) + 1u];
                metal::float4 i0_0_2_ = x[((x0_ + column) >> 2u) + 2u];
                metal::float4 i0_0_3_ = x[((x0_ + column) >> 2u) + 3u];
                all0_0_ = i0_0_0_.x;
                float _e316 = all0_0_;
                all0_0_ = _e316 + i0_0_0_.y;
                float _e319 = all0_0_;
                all0_0_ = _e319 + i0_0_0_.z;
                float _e322 = all0_0_;
                all0_0_ = _e322 + i0_0_0_.w;
                float _e325 = all0_0_;
                all0_0_ = _e325 + i0_0_1_.x;
                float _e328 = all0_0_;
                all0_0_ = _e328 + i0_0_1_.y;
                float _e331 = all0_0_;
                all0_0_ = _e331 + i0_0_1_.z;
                float _e334 = all0_0_;
                all0_0_ = _e334 + i0_0_1_.w;
                float _e337 = all0_0_;
                all0_0_ = _e337 + i0_0_2_.x;
                float _e340 = all0_0_;
                all0_0_ = _e340 + i0_0_2_.y;
                float _e343 = all0_0_;
                all0_0_ = _e343 + i0_0_2_.z;
                float _e346 = all0_0_;
                all0_0_ = _e346 + i0_0_2_.w;
                float _e349 = all0_0_;
                all0_0_ = _e349 + i0_0_3_.x;
                float _e352 = all0_0_;
                all0_0_ = _e352 + i0_0_3_.y;
                float _e355 = all0_0_;
                all0_0_ = _e355 + i0_0_3_.z;
                float _e358 = all0_0_;
                all0_0_ = _e358 + i0_0_3_.w;
                dot0_0_ = v0_0_0_ * i0_0_0_.x;
                float _e365 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e365);
                float _e368 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e368);
                float _e371 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e371);
                float _e374 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e374);
                float _e377 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e377);
                float _e380 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e380);
                float _e383 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e383);
                float _e386 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e386);
                float _e389 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e389);
                float _e392 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e392);
                float _e395 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e395);
                float _e398 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e398);
                float _e401 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e401);
                float _e404 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e404);
                float _e407 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e407);
                float _e409 = dot0_0_;
                float _e410 = all0_0_;
                float _e411 = acc0_1;
                acc0_1 = metal::fma(_e153, _e409, metal::fma(_e157, _e410, _e411));
            }
        }
        float _e417 = acc0_1;
        always = _e417;
    }
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e2102 = turn;
            turn = _e2102 + 8u;
        }
        loop_init_1 = false;
        uint _e420 = turn;
        uint _e423 = p.k;
        if (_e420 < _e423) {
        } else {
            break;
        }
        {
            uint _e425 = turn;
            uint rank_1 = _e425 + team;
            uint word_1 = next;
            next = 0u;
            uint _e433 = p.k;
            if ((rank_1 + 8u) < _e433) {
                uint _e438 = p.table_start;
                uint _e442 = p.first_id;
                uint _e447 = ids[(_e442 + rank_1) + 8u];
                uint _e450 = table[_e438 + _e447];
                next = _e450;
            }
            uint _e457 = p.slot_words;
            uint base = ((word_1 & 16777215u) - 1u) * _e457;
            uint _e461 = p.columns;
            uint x0_1 = rank_1 * _e461;
            acc0_ = 0.0;
            acc1_ = 0.0;
            acc2_ = 0.0;
            acc3_ = 0.0;
            if (word_1 != 0u) {
                uint _e473 = p.rows;
                uint row0_1 = metal::min(first + 0u, _e473 - 1u);
                uint _e479 = p.w0_;
                uint m0_ = base + _e479;
                uint _e483 = p.row_words;
                uint w0_2 = row0_1 * _e483;
                uint _e487 = p.row_groups;
                uint s0_1 = row0_1 * _e487;
                uint _e491 = p.s0_;
                uint scales0_1 = base + _e491;
                uint _e495 = p.b0_;
                uint biases0_1 = base + _e495;
                uint _e501 = p.rows;
                uint row1_ = metal::min(first + 1u, _e501 - 1u);
                uint _e507 = p.w0_;
                uint m1_ = base + _e507;
                uint _e511 = p.row_words;
                uint w1_ = row1_ * _e511;
                uint _e515 = p.row_groups;
                uint s1_ = row1_ * _e515;
                uint _e519 = p.s0_;
                uint scales1_ = base + _e519;
                uint _e523 = p.b0_;
                uint biases1_ = base + _e523;
                uint _e529 = p.rows;
                uint row2_ = metal::min(first + 2u, _e529 - 1u);
                uint _e535 = p.w0_;
                uint m2_ = base + _e535;
                uint _e539 = p.row_words;
                uint w2_ = row2_ * _e539;
                uint _e543 = p.row_groups;
                uint s2_ = row2_ * _e543;
                uint _e547 = p.s0_;
                uint scales2_ = base + _e547;
                uint _e551 = p.b0_;
                uint biases2_ = base + _e551;
                uint _e557 = p.rows;
                uint row3_ = metal::min(first + 3u, _e557 - 1u);
                uint _e563 = p.w0_;
                uint m3_ = base + _e563;
                uint _e567 = p.row_words;
                uint w3_ = row3_ * _e567;
                uint _e571 = p.row_groups;
                uint s3_ = row3_ * _e571;
                uint _e575 = p.s0_;
                uint scales3_ = base + _e575;
                uint _e579 = p.b0_;
                uint biases3_ = base + _e579;
                unit0_1 = lane;
                bool loop_init_2 = true;
                while(true) {
                    if (!loop_init_2) {
                        uint _e1948 = unit0_1;
                        unit0_1 = _e1948 + 32u;
                    }
                    loop_init_2 = false;
                    uint _e582 = unit0_1;
                    if (_e582 < units) {
                    } else {
                        break;
                    }
                    {
                        n_u0_0_0_1 = metal::uint2 {};
                        n_sw0_0_1 = uint {};
                        n_bw0_0_1 = uint {};
                        n_u1_0_0_ = metal::uint2 {};
                        n_sw1_0_ = uint {};
                        n_bw1_0_ = uint {};
                        n_u2_0_0_ = metal::uint2 {};
                        n_sw2_0_ = uint {};
                        n_bw2_0_ = uint {};
                        n_u3_0_0_ = metal::uint2 {};
                        n_sw3_0_ = uint {};
                        n_bw3_0_ = uint {};
                        switch(word_1 >> 24u) {
                            case 0u: {
                                uint _e616 = unit0_1;
                                metal::uint2 _e619 = slab0_[((m0_ / 2u) + (w0_2 / 2u)) + _e616];
                                n_u0_0_0_1 = _e619;
                                uint _e621 = unit0_1;
                                uint _e633 = unit0_1;
                                uint _e645 = slab0_[(scales0_1 + ((s0_1 + ((_e621 * 16u) / 64u)) >> 1u)) / 2u][(scales0_1 + ((s0_1 + ((_e633 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw0_0_1 = _e645;
                                uint _e647 = unit0_1;
                                uint _e659 = unit0_1;
                                uint _e671 = slab0_[(biases0_1 + ((s0_1 + ((_e647 * 16u) / 64u)) >> 1u)) / 2u][(biases0_1 + ((s0_1 + ((_e659 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw0_0_1 = _e671;
                                uint _e678 = unit0_1;
                                metal::uint2 _e681 = slab0_[((m1_ / 2u) + (w1_ / 2u)) + _e678];
                                n_u1_0_0_ = _e681;
                                uint _e683 = unit0_1;
                                uint _e695 = unit0_1;
                                uint _e707 = slab0_[(scales1_ + ((s1_ + ((_e683 * 16u) / 64u)) >> 1u)) / 2u][(scales1_ + ((s1_ + ((_e695 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw1_0_ = _e707;
                                uint _e709 = unit0_1;
                                uint _e721 = unit0_1;
                                uint _e733 = slab0_[(biases1_ + ((s1_ + ((_e709 * 16u) / 64u)) >> 1u)) / 2u][(biases1_ + ((s1_ + ((_e721 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw1_0_ = _e733;
                                uint _e740 = unit0_1;
                                metal::uint2 _e743 = slab0_[((m2_ / 2u) + (w2_ / 2u)) + _e740];
                                n_u2_0_0_ = _e743;
                                uint _e745 = unit0_1;
                                uint _e757 = unit0_1;
                                uint _e769 = slab0_[(scales2_ + ((s2_ + ((_e745 * 16u) / 64u)) >> 1u)) / 2u][(scales2_ + ((s2_ + ((_e757 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw2_0_ = _e769;
                                uint _e771 = unit0_1;
                                uint _e783 = unit0_1;
                                uint _e795 = slab0_[(biases2_ + ((s2_ + ((_e771 * 16u) / 64u)) >> 1u)) / 2u][(biases2_ + ((s2_ + ((_e783 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw2_0_ = _e795;
                                uint _e802 = unit0_1;
                                metal::uint2 _e805 = slab0_[((m3_ / 2u) + (w3_ / 2u)) + _e802];
                                n_u3_0_0_ = _e805;
                                uint _e807 = unit0_1;
                                uint _e819 = unit0_1;
                                uint _e831 = slab0_[(scales3_ + ((s3_ + ((_e807 * 16u) / 64u)) >> 1u)) / 2u][(scales3_ + ((s3_ + ((_e819 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw3_0_ = _e831;
                                uint _e833 = unit0_1;
                                uint _e845 = unit0_1;
                                uint _e857 = slab0_[(biases3_ + ((s3_ + ((_e833 * 16u) / 64u)) >> 1u)) / 2u][(biases3_ + ((s3_ + ((_e845 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw3_0_ = _e857;
                                break;
                            }
                            case 1u: {
                                uint _e864 = unit0_1;
                                metal::uint2 _e867 = slab1_[((m0_ / 2u) + (w0_2 / 2u)) + _e864];
                                n_u0_0_0_1 = _e867;
                                uint _e869 = unit0_1;
                                uint _e881 = unit0_1;
                                uint _e893 = slab1_[(scales0_1 + ((s0_1 + ((_e869 * 16u) / 64u)) >> 1u)) / 2u][(scales0_1 + ((s0_1 + ((_e881 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw0_0_1 = _e893;
                                uint _e895 = unit0_1;
                                uint _e907 = unit0_1;
                                uint _e919 = slab1_[(biases0_1 + ((s0_1 + ((_e895 * 16u) / 64u)) >> 1u)) / 2u][(biases0_1 + ((s0_1 + ((_e907 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw0_0_1 = _e919;
                                uint _e926 = unit0_1;
                                metal::uint2 _e929 = slab1_[((m1_ / 2u) + (w1_ / 2u)) + _e926];
                                n_u1_0_0_ = _e929;
                                uint _e931 = unit0_1;
                                uint _e943 = unit0_1;
                                uint _e955 = slab1_[(scales1_ + ((s1_ + ((_e931 * 16u) / 64u)) >> 1u)) / 2u][(scales1_ + ((s1_ + ((_e943 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw1_0_ = _e955;
                                uint _e957 = unit0_1;
                                uint _e969 = unit0_1;
                                uint _e981 = slab1_[(biases1_ + ((s1_ + ((_e957 * 16u) / 64u)) >> 1u)) / 2u][(biases1_ + ((s1_ + ((_e969 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw1_0_ = _e981;
                                uint _e988 = unit0_1;
                                metal::uint2 _e991 = slab1_[((m2_ / 2u) + (w2_ / 2u)) + _e988];
                                n_u2_0_0_ = _e991;
                                uint _e993 = unit0_1;
                                uint _e1005 = unit0_1;
                                uint _e1017 = slab1_[(scales2_ + ((s2_ + ((_e993 * 16u) / 64u)) >> 1u)) / 2u][(scales2_ + ((s2_ + ((_e1005 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw2_0_ = _e1017;
                                uint _e1019 = unit0_1;
                                uint _e1031 = unit0_1;
                                uint _e1043 = slab1_[(biases2_ + ((s2_ + ((_e1019 * 16u) / 64u)) >> 1u)) / 2u][(biases2_ + ((s2_ + ((_e1031 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw2_0_ = _e1043;
                                uint _e1050 = unit0_1;
                                metal::uint2 _e1053 = slab1_[((m3_ / 2u) + (w3_ / 2u)) + _e1050];
                                n_u3_0_0_ = _e1053;
                                uint _e1055 = unit0_1;
                                uint _e1067 = unit0_1;
                                uint _e1079 = slab1_[(scales3_ + ((s3_ + ((_e1055 * 16u) / 64u)) >> 1u)) / 2u][(scales3_ + ((s3_ + ((_e1067 * 16u) / 64u)) >> 1u)) % 2u];
                                n_sw3_0_ = _e1079;
                                uint _e1081 = unit0_1;
                                uint _e1093 = unit0_1;
                                uint _e1105 = slab1_[(biases3_ + ((s3_ + ((_e1081 * 16u) / 64u)) >> 1u)) / 2u][(biases3_ + ((s3_ + ((_e1093 * 16u) / 64u)) >> 1u)) % 2u];
                                n_bw3_0_ = _e1105;
                                break;
                            }
                            default: {
                                break;
                            }
                        }
                        metal::uint2 u0_0_0_1 = n_u0_0_0_1;
                        uint sw0_0_1 = n_sw0_0_1;
                        uint bw0_0_1 = n_bw0_0_1;
                        metal::uint2 u1_0_0_ = n_u1_0_0_;
                        uint sw1_0_ = n_sw1_0_;
                        uint bw1_0_ = n_bw1_0_;
                        metal::uint2 u2_0_0_ = n_u2_0_0_;
                        uint sw2_0_ = n_sw2_0_;
                        uint bw2_0_ = n_bw2_0_;
                        metal::uint2 u3_0_0_ = n_u3_0_0_;
                        uint sw3_0_ = n_sw3_0_;
                        uint bw3_0_ = n_bw3_0_;
                        uint _e1118 = unit0_1;
                        uint column_1 = _e1118 * 16u;
                        uint q0_0_0_1 = u0_0_0_1.x;
                        uint q0_1_0_1 = u0_0_0_1.y;
                        float _e1126 = number(sw0_0_1, s0_1 + (column_1 / 64u));
                        float _e1130 = number(bw0_0_1, s0_1 + (column_1 / 64u));
                        uint q1_0_0_ = u1_0_0_.x;
                        uint q1_1_0_ = u1_0_0_.y;
                        float _e1136 = number(sw1_0_, s1_ + (column_1 / 64u));
                        float _e1140 = number(bw1_0_, s1_ + (column_1 / 64u));
                        uint q2_0_0_ = u2_0_0_.x;
                        uint q2_1_0_ = u2_0_0_.y;
                        float _e1146 = number(sw2_0_, s2_ + (column_1 / 64u));
                        float _e1150 = number(bw2_0_, s2_ + (column_1 / 64u));
                        uint q3_0_0_ = u3_0_0_.x;
                        uint q3_1_0_ = u3_0_0_.y;
                        float _e1156 = number(sw3_0_, s3_ + (column_1 / 64u));
                        float _e1160 = number(bw3_0_, s3_ + (column_1 / 64u));
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
                        float v0_2_0_ = as_type<float>((q2_0_0_ & 15u) | 1258291200u) - 8388608.0;
                        float v0_2_1_ = as_type<float>((q2_0_0_ & 240u) | 1224736768u) - 524288.0;
                        float v0_2_2_ = as_type<float>((q2_0_0_ & 3840u) | 1191182336u) - 32768.0;
                        float v0_2_3_ = as_type<float>((q2_0_0_ & 61440u) | 1157627904u) - 2048.0;
                        float v0_2_4_ = as_type<float>((q2_0_0_ & 983040u) | 1124073472u) - 128.0;
                        float v0_2_5_ = as_type<float>(((q2_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                        float v0_2_6_ = as_type<float>(((q2_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                        float v0_2_7_ = as_type<float>(((q2_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                        float v0_2_8_ = as_type<float>((q2_1_0_ & 15u) | 1258291200u) - 8388608.0;
                        float v0_2_9_ = as_type<float>((q2_1_0_ & 240u) | 1224736768u) - 524288.0;
                        float v0_2_10_ = as_type<float>((q2_1_0_ & 3840u) | 1191182336u) - 32768.0;
                        float v0_2_11_ = as_type<float>((q2_1_0_ & 61440u) | 1157627904u) - 2048.0;
                        float v0_2_12_ = as_type<float>((q2_1_0_ & 983040u) | 1124073472u) - 128.0;
                        float v0_2_13_ = as_type<float>(((q2_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                        float v0_2_14_ = as_type<float>(((q2_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                        float v0_2_15_ = as_type<float>(((q2_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                        float v0_3_0_ = as_type<float>((q3_0_0_ & 15u) | 1258291200u) - 8388608.0;
                        float v0_3_1_ = as_type<float>((q3_0_0_ & 240u) | 1224736768u) - 524288.0;
                        float v0_3_2_ = as_type<float>((q3_0_0_ & 3840u) | 1191182336u) - 32768.0;
                        float v0_3_3_ = as_type<float>((q3_0_0_ & 61440u) | 1157627904u) - 2048.0;
                        float v0_3_4_ = as_type<float>((q3_0_0_ & 983040u) | 1124073472u) - 128.0;
                        float v0_3_5_ = as_type<float>(((q3_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                        float v0_3_6_ = as_type<float>(((q3_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                        float v0_3_7_ = as_type<float>(((q3_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                        float v0_3_8_ = as_type<float>((q3_1_0_ & 15u) | 1258291200u) - 8388608.0;
                        float v0_3_9_ = as_type<float>((q3_1_0_ & 240u) | 1224736768u) - 524288.0;
                        float v0_3_10_ = as_type<float>((q3_1_0_ & 3840u) | 1191182336u) - 32768.0;
                        float v0_3_11_ = as_type<float>((q3_1_0_ & 61440u) | 1157627904u) - 2048.0;
                        float v0_3_12_ = as_type<float>((q3_1_0_ & 983040u) | 1124073472u) - 128.0;
                        float v0_3_13_ = as_type<float>(((q3_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                        float v0_3_14_ = as_type<float>(((q3_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                        float v0_3_15_ = as_type<float>(((q3_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                        metal::float4 i0_0_0_1 = x[((x0_1 + column_1) >> 2u) + 0u];
                        metal::float4 i0_0_1_1 = x[((x0_1 + column_1) >> 2u) + 1u];
                        metal::float4 i0_0_2_1 = x[((x0_1 + column_1) >> 2u) + 2u];
                        metal::float4 i0_0_3_1 = x[((x0_1 + column_1) >> 2u) + 3u];
                        all0_0_1 = i0_0_0_1.x;
                        float _e1691 = all0_0_1;
                        all0_0_1 = _e1691 + i0_0_0_1.y;
                        float _e1694 = all0_0_1;
                        all0_0_1 = _e1694 + i0_0_0_1.z;
                        float _e1697 = all0_0_1;
                        all0_0_1 = _e1697 + i0_0_0_1.w;
                        float _e1700 = all0_0_1;
                        all0_0_1 = _e1700 + i0_0_1_1.x;
                        float _e1703 = all0_0_1;
                        all0_0_1 = _e1703 + i0_0_1_1.y;
                        float _e1706 = all0_0_1;
                        all0_0_1 = _e1706 + i0_0_1_1.z;
                        float _e1709 = all0_0_1;
                        all0_0_1 = _e1709 + i0_0_1_1.w;
                        float _e1712 = all0_0_1;
                        all0_0_1 = _e1712 + i0_0_2_1.x;
                        float _e1715 = all0_0_1;
                        all0_0_1 = _e1715 + i0_0_2_1.y;
                        float _e1718 = all0_0_1;
                        all0_0_1 = _e1718 + i0_0_2_1.z;
                        float _e1721 = all0_0_1;
                        all0_0_1 = _e1721 + i0_0_2_1.w;
                        float _e1724 = all0_0_1;
                        all0_0_1 = _e1724 + i0_0_3_1.x;
                        float _e1727 = all0_0_1;
                        all0_0_1 = _e1727 + i0_0_3_1.y;
                        float _e1730 = all0_0_1;
                        all0_0_1 = _e1730 + i0_0_3_1.z;
                        float _e1733 = all0_0_1;
                        all0_0_1 = _e1733 + i0_0_3_1.w;
                        dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                        float _e1740 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e1740);
                        float _e1743 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e1743);
                        float _e1746 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e1746);
                        float _e1749 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e1749);
                        float _e1752 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e1752);
                        float _e1755 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e1755);
                        float _e1758 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e1758);
                        float _e1761 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e1761);
                        float _e1764 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e1764);
                        float _e1767 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e1767);
                        float _e1770 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e1770);
                        float _e1773 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e1773);
                        float _e1776 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e1776);
                        float _e1779 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e1779);
                        float _e1782 = dot0_0_1;
                        dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e1782);
                        float _e1784 = dot0_0_1;
                        float _e1785 = all0_0_1;
                        float _e1786 = acc0_;
                        acc0_ = metal::fma(_e1126, _e1784, metal::fma(_e1130, _e1785, _e1786));
                        dot1_0_ = v0_1_0_ * i0_0_0_1.x;
                        float _e1793 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_1_, i0_0_0_1.y, _e1793);
                        float _e1796 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_2_, i0_0_0_1.z, _e1796);
                        float _e1799 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_3_, i0_0_0_1.w, _e1799);
                        float _e1802 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_4_, i0_0_1_1.x, _e1802);
                        float _e1805 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_5_, i0_0_1_1.y, _e1805);
                        float _e1808 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_6_, i0_0_1_1.z, _e1808);
                        float _e1811 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_7_, i0_0_1_1.w, _e1811);
                        float _e1814 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_8_, i0_0_2_1.x, _e1814);
                        float _e1817 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_9_, i0_0_2_1.y, _e1817);
                        float _e1820 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_10_, i0_0_2_1.z, _e1820);
                        float _e1823 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_11_, i0_0_2_1.w, _e1823);
                        float _e1826 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_12_, i0_0_3_1.x, _e1826);
                        float _e1829 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_13_, i0_0_3_1.y, _e1829);
                        float _e1832 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_14_, i0_0_3_1.z, _e1832);
                        float _e1835 = dot1_0_;
                        dot1_0_ = metal::fma(v0_1_15_, i0_0_3_1.w, _e1835);
                        float _e1837 = dot1_0_;
                        float _e1838 = all0_0_1;
                        float _e1839 = acc1_;
                        acc1_ = metal::fma(_e1136, _e1837, metal::fma(_e1140, _e1838, _e1839));
                        dot2_0_ = v0_2_0_ * i0_0_0_1.x;
                        float _e1846 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_1_, i0_0_0_1.y, _e1846);
                        float _e1849 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_2_, i0_0_0_1.z, _e1849);
                        float _e1852 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_3_, i0_0_0_1.w, _e1852);
                        float _e1855 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_4_, i0_0_1_1.x, _e1855);
                        float _e1858 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_5_, i0_0_1_1.y, _e1858);
                        float _e1861 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_6_, i0_0_1_1.z, _e1861);
                        float _e1864 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_7_, i0_0_1_1.w, _e1864);
                        float _e1867 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_8_, i0_0_2_1.x, _e1867);
                        float _e1870 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_9_, i0_0_2_1.y, _e1870);
                        float _e1873 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_10_, i0_0_2_1.z, _e1873);
                        float _e1876 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_11_, i0_0_2_1.w, _e1876);
                        float _e1879 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_12_, i0_0_3_1.x, _e1879);
                        float _e1882 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_13_, i0_0_3_1.y, _e1882);
                        float _e1885 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_14_, i0_0_3_1.z, _e1885);
                        float _e1888 = dot2_0_;
                        dot2_0_ = metal::fma(v0_2_15_, i0_0_3_1.w, _e1888);
                        float _e1890 = dot2_0_;
                        float _e1891 = all0_0_1;
                        float _e1892 = acc2_;
                        acc2_ = metal::fma(_e1146, _e1890, metal::fma(_e1150, _e1891, _e1892));
                        dot3_0_ = v0_3_0_ * i0_0_0_1.x;
                        float _e1899 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_1_, i0_0_0_1.y, _e1899);
                        float _e1902 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_2_, i0_0_0_1.z, _e1902);
                        float _e1905 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_3_, i0_0_0_1.w, _e1905);
                        float _e1908 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_4_, i0_0_1_1.x, _e1908);
                        float _e1911 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_5_, i0_0_1_1.y, _e1911);
                        float _e1914 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_6_, i0_0_1_1.z, _e1914);
                        float _e1917 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_7_, i0_0_1_1.w, _e1917);
                        float _e1920 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_8_, i0_0_2_1.x, _e1920);
                        float _e1923 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_9_, i0_0_2_1.y, _e1923);
                        float _e1926 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_10_, i0_0_2_1.z, _e1926);
                        float _e1929 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_11_, i0_0_2_1.w, _e1929);
                        float _e1932 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_12_, i0_0_3_1.x, _e1932);
                        float _e1935 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_13_, i0_0_3_1.y, _e1935);
                        float _e1938 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_14_, i0_0_3_1.z, _e1938);
                        float _e1941 = dot3_0_;
                        dot3_0_ = metal::fma(v0_3_15_, i0_0_3_1.w, _e1941);
                        float _e1943 = dot3_0_;
                        float _e1944 = all0_0_1;
                        float _e1945 = acc3_;
                        acc3_ = metal::fma(_e1156, _e1943, metal::fma(_e1160, _e1944, _e1945));
                    }
                }
            }
            float _e1960 = acc0_;
            sums.inner[(((team * 4u) + 0u) * 32u) + lane] = _e1960;
            float _e1970 = acc1_;
            sums.inner[(((team * 4u) + 1u) * 32u) + lane] = _e1970;
            float _e1980 = acc2_;
            sums.inner[(((team * 4u) + 2u) * 32u) + lane] = _e1980;
            float _e1990 = acc3_;
            sums.inner[(((team * 4u) + 3u) * 32u) + lane] = _e1990;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if ((lane >> 2u) < 4u) {
                uint slot = (team * 4u) + (lane >> 2u);
                uint at = (slot * 32u) + ((lane & 3u) * 8u);
                float _e2016 = sums.inner[at];
                float _e2021 = sums.inner[at + 1u];
                float _e2027 = sums.inner[at + 2u];
                float _e2032 = sums.inner[at + 3u];
                float _e2039 = sums.inner[at + 4u];
                float _e2044 = sums.inner[at + 5u];
                float _e2050 = sums.inner[at + 6u];
                float _e2055 = sums.inner[at + 7u];
                part.inner[(slot * 4u) + (lane & 3u)] = ((_e2016 + _e2021) + (_e2027 + _e2032)) + ((_e2039 + _e2044) + (_e2050 + _e2055));
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (lane < 4u) {
                uint at_1 = ((team * 4u) + lane) * 4u;
                float _e2068 = part.inner[at_1];
                float _e2073 = part.inner[at_1 + 1u];
                float _e2079 = part.inner[at_1 + 2u];
                float _e2084 = part.inner[at_1 + 3u];
                float sum = (_e2068 + _e2073) + (_e2079 + _e2084);
                uint n = 0u + lane;
                uint r = n % 4u;
                uint t = n / 4u;
                uint _e2095 = p.k;
                if (rank_1 < _e2095) {
                    found.inner[(rank_1 * 4u) + r] = sum;
                }
            }
        }
    }
    {
        float _e2105 = always;
        acc0_2 = _e2105;
        float _e2116 = acc0_2;
        sums.inner[(((team * 1u) + 0u) * 32u) + lane] = _e2116;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if ((lane >> 2u) < 1u) {
            uint slot_1 = (team * 1u) + (lane >> 2u);
            uint at_2 = (slot_1 * 32u) + ((lane & 3u) * 8u);
            float _e2142 = sums.inner[at_2];
            float _e2147 = sums.inner[at_2 + 1u];
            float _e2153 = sums.inner[at_2 + 2u];
            float _e2158 = sums.inner[at_2 + 3u];
            float _e2165 = sums.inner[at_2 + 4u];
            float _e2170 = sums.inner[at_2 + 5u];
            float _e2176 = sums.inner[at_2 + 6u];
            float _e2181 = sums.inner[at_2 + 7u];
            part.inner[(slot_1 * 4u) + (lane & 3u)] = ((_e2142 + _e2147) + (_e2153 + _e2158)) + ((_e2165 + _e2170) + (_e2176 + _e2181));
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if (lane < 1u) {
            uint at_3 = ((team * 1u) + lane) * 4u;
            float _e2194 = part.inner[at_3];
            float _e2199 = part.inner[at_3 + 1u];
            float _e2205 = part.inner[at_3 + 2u];
            float _e2210 = part.inner[at_3 + 3u];
            float sum_1 = (_e2194 + _e2199) + (_e2205 + _e2210);
            uint n_1 = 0u + lane;
            uint r_1 = n_1 % 1u;
            uint t_1 = n_1 / 1u;
            if (team < 4u) {
                uint _e2224 = p.k;
                found.inner[(_e2224 * 4u) + team] = sum_1;
            }
        }
    }
    uint _e2231 = p.k;
    if (lid < _e2231) {
        weight_of.inner[lid] = own_weight;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < 4u) {
        uint _e2242 = p.rows;
        local_1 = (first + lid) < _e2242;
    } else {
        local_1 = false;
    }
    bool _e2245 = local_1;
    if (_e2245) {
        bool loop_init_3 = true;
        while(true) {
            if (!loop_init_3) {
                uint _e2268 = rank;
                rank = _e2268 + 1u;
            }
            loop_init_3 = false;
            uint _e2250 = rank;
            uint _e2253 = p.k;
            if (_e2250 < _e2253) {
            } else {
                break;
            }
            {
                uint _e2256 = rank;
                float _e2261 = found.inner[(_e2256 * 4u) + lid];
                uint _e2263 = rank;
                float _e2265 = weight_of.inner[_e2263];
                float _e2266 = all;
                all = metal::fma(_e2261, _e2265, _e2266);
            }
        }
        uint _e2274 = p.k;
        float _e2279 = found.inner[(_e2274 * 4u) + lid];
        float _e2286 = all;
        all = metal::fma(_e2279, 1.0 / (1.0 + metal::exp(-(own_factor))), _e2286);
        float _e2291 = before;
        float _e2292 = all;
        y[first + lid] = _e2291 + _e2292;
        return;
    } else {
        return;
    }
}
