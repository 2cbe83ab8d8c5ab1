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

typedef uint type_1[1];
typedef metal::float4 type_4[1];
typedef float type_5[1];
struct Parameters {
    uint rows;
    uint columns;
    uint row_words;
    uint row_groups;
    uint first_tile;
    uint layer;
    uint slot_words;
    uint share;
    uint flag;
    uint w0_;
    uint s0_;
    uint b0_;
    uint w1_;
    uint s1_;
    uint b1_;
};
struct type_6 {
    float inner[1024];
};
struct type_7 {
    float inner[128];
};
struct type_8 {
    float inner[64];
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
, device type_1 const& slab0_ [[buffer(1)]]
, device type_1 const& slab1_ [[buffer(2)]]
, device type_1 const& table [[buffer(3)]]
, device type_1 const& tiles [[buffer(4)]]
, device type_1 const& order [[buffer(5)]]
, device type_4 const& x [[buffer(6)]]
, device type_5& y [[buffer(7)]]
, device type_1 const& control [[buffer(8)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_7& part
, threadgroup type_8& fin
, constant _mslBufferSizes& _buffer_sizes [[buffer(9)]]
) {
    bool local = {};
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    float acc2_ = 0.0;
    float acc3_ = 0.0;
    uint unit = {};
    float all = {};
    float dot0_ = {};
    float dot1_ = {};
    float dot2_ = {};
    float dot3_ = {};
    uint unit_1 = {};
    float all_1 = {};
    float dot0_1 = {};
    float dot1_1 = {};
    float dot2_1 = {};
    float dot3_1 = {};
    uint pair = {};
    bool local_1 = {};
    bool local_2 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        uint _e11 = control[0];
        uint _e14 = p.flag;
        local = _e11 != _e14;
    } else {
        local = false;
    }
    bool _e17 = local;
    if (_e17) {
        return;
    }
    uint _e20 = p.first_tile;
    uint tile = (_e20 + wid.y) * 3u;
    uint _e28 = p.layer;
    uint _e31 = tiles[tile];
    uint word_1 = table[_e28 + _e31];
    if (word_1 == 0u) {
        return;
    }
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint first = ((wid.x * 8u) + team) * 2u;
    uint _e49 = p.columns;
    uint units = _e49 / 8u;
    uint start = tiles[tile + 1u];
    uint count = tiles[tile + 2u];
    uint _e68 = p.slot_words;
    uint base = ((word_1 & 16777215u) - 1u) * _e68;
    uint _e74 = p.rows;
    uint row0_ = metal::min(first + 0u, _e74 - 1u);
    uint _e80 = p.w0_;
    uint m0_ = base + _e80;
    uint _e84 = p.row_words;
    uint w0_ = m0_ + (row0_ * _e84);
    uint _e89 = p.row_groups;
    uint s0_ = row0_ * _e89;
    uint _e93 = p.s0_;
    uint scales0_ = base + _e93;
    uint _e97 = p.b0_;
    uint biases0_ = base + _e97;
    uint _e103 = p.rows;
    uint row1_ = metal::min(first + 1u, _e103 - 1u);
    uint _e109 = p.w0_;
    uint m1_ = base + _e109;
    uint _e113 = p.row_words;
    uint w1_ = m1_ + (row1_ * _e113);
    uint _e118 = p.row_groups;
    uint s1_ = row1_ * _e118;
    uint _e122 = p.s0_;
    uint scales1_ = base + _e122;
    uint _e126 = p.b0_;
    uint biases1_ = base + _e126;
    uint _e132 = p.rows;
    uint row2_ = metal::min(first + 0u, _e132 - 1u);
    uint _e138 = p.w1_;
    uint m2_ = base + _e138;
    uint _e142 = p.row_words;
    uint w2_ = m2_ + (row2_ * _e142);
    uint _e147 = p.row_groups;
    uint s2_ = row2_ * _e147;
    uint _e151 = p.s1_;
    uint scales2_ = base + _e151;
    uint _e155 = p.b1_;
    uint biases2_ = base + _e155;
    uint _e161 = p.rows;
    uint row3_ = metal::min(first + 1u, _e161 - 1u);
    uint _e167 = p.w1_;
    uint m3_ = base + _e167;
    uint _e171 = p.row_words;
    uint w3_ = m3_ + (row3_ * _e171);
    uint _e176 = p.row_groups;
    uint s3_ = row3_ * _e176;
    uint _e180 = p.s1_;
    uint scales3_ = base + _e180;
    uint _e184 = p.b1_;
    uint biases3_ = base + _e184;
    uint pair0_ = order[start + metal::min(0u, count - 1u)];
    uint _e196 = p.share;
    uint _e200 = p.columns;
    uint x0_ = (pair0_ / _e196) * _e200;
    switch(word_1 >> 24u) {
        case 0u: {
            unit = lane;
            bool loop_init = true;
            while(true) {
                if (!loop_init) {
                    uint _e637 = unit;
                    unit = _e637 + 32u;
                }
                loop_init = false;
                uint _e213 = unit;
                if (_e213 < units) {
                } else {
                    break;
                }
                {
                    uint _e215 = unit;
                    uint column = _e215 * 8u;
                    uint _e219 = unit;
                    uint q0_0_ = slab0_[(w0_ + (_e219 * 1u)) + 0u];
                    float v0_0_ = static_cast<float>((q0_0_ >> 0u) & 15u);
                    float v0_1_ = static_cast<float>((q0_0_ >> 4u) & 15u);
                    float v0_2_ = static_cast<float>((q0_0_ >> 8u) & 15u);
                    float v0_3_ = static_cast<float>((q0_0_ >> 12u) & 15u);
                    float v0_4_ = static_cast<float>((q0_0_ >> 16u) & 15u);
                    float v0_5_ = static_cast<float>((q0_0_ >> 20u) & 15u);
                    float v0_6_ = static_cast<float>((q0_0_ >> 24u) & 15u);
                    float v0_7_ = static_cast<float>((q0_0_ >> 28u) & 15u);
                    uint g0_ = s0_ + (column / 64u);
                    uint _e275 = slab0_[scales0_ + (g0_ >> 1u)];
                    float _e276 = number(_e275, g0_);
                    uint _e282 = slab0_[biases0_ + (g0_ >> 1u)];
                    float _e283 = number(_e282, g0_);
                    uint _e285 = unit;
                    uint q1_0_ = slab0_[(w1_ + (_e285 * 1u)) + 0u];
                    float v1_0_ = static_cast<float>((q1_0_ >> 0u) & 15u);
                    float v1_1_ = static_cast<float>((q1_0_ >> 4u) & 15u);
                    float v1_2_ = static_cast<float>((q1_0_ >> 8u) & 15u);
                    float v1_3_ = static_cast<float>((q1_0_ >> 12u) & 15u);
                    float v1_4_ = static_cast<float>((q1_0_ >> 16u) & 15u);
                    float v1_5_ = static_cast<float>((q1_0_ >> 20u) & 15u);
                    float v1_6_ = static_cast<float>((q1_0_ >> 24u) & 15u);
                    float v1_7_ = static_cast<float>((q1_0_ >> 28u) & 15u);
                    uint g1_ = s1_ + (column / 64u);
                    uint _e341 = slab0_[scales1_ + (g1_ >> 1u)];
                    float _e342 = number(_e341, g1_);
                    uint _e348 = slab0_[biases1_ + (g1_ >> 1u)];
                    float _e349 = number(_e348, g1_);
                    uint _e351 = unit;
                    uint q2_0_ = slab0_[(w2_ + (_e351 * 1u)) + 0u];
                    float v2_0_ = static_cast<float>((q2_0_ >> 0u) & 15u);
                    float v2_1_ = static_cast<float>((q2_0_ >> 4u) & 15u);
                    float v2_2_ = static_cast<float>((q2_0_ >> 8u) & 15u);
                    float v2_3_ = static_cast<float>((q2_0_ >> 12u) & 15u);
                    float v2_4_ = static_cast<float>((q2_0_ >> 16u) & 15u);
                    float v2_5_ = static_cast<float>((q2_0_ >> 20u) & 15u);
                    float v2_6_ = static_cast<float>((q2_0_ >> 24u) & 15u);
                    float v2_7_ = static_cast<float>((q2_0_ >> 28u) & 15u);
                    uint g2_ = s2_ + (column / 64u);
                    uint _e407 = slab0_[scales2_ + (g2_ >> 1u)];
                    float _e408 = number(_e407, g2_);
                    uint _e414 = slab0_[biases2_ + (g2_ >> 1u)];
                    float _e415 = number(_e414, g2_);
                    uint _e417 = unit;
                    uint q3_0_ = slab0_[(w3_ + (_e417 * 1u)) + 0u];
                    float v3_0_ = static_cast<float>((q3_0_ >> 0u) & 15u);
                    float v3_1_ = static_cast<float>((q3_0_ >> 4u) & 15u);
                    float v3_2_ = static_cast<float>((q3_0_ >> 8u) & 15u);
                    float v3_3_ = static_cast<float>((q3_0_ >> 12u) & 15u);
                    float v3_4_ = static_cast<float>((q3_0_ >> 16u) & 15u);
                    float v3_5_ = static_cast<float>((q3_0_ >> 20u) & 15u);
                    float v3_6_ = static_cast<float>((q3_0_ >> 24u) & 15u);
                    float v3_7_ = static_cast<float>((q3_0_ >> 28u) & 15u);
                    uint g3_ = s3_ + (column / 64u);
                    uint _e473 = slab0_[scales3_ + (g3_ >> 1u)];
                    float _e474 = number(_e473, g3_);
                    uint _e480 = slab0_[biases3_ + (g3_ >> 1u)];
                    float _e481 = number(_e480, g3_);
                    {
                        metal::float4 i0_ = x[((x0_ + column) >> 2u) + 0u];
                        metal::float4 i1_ = x[((x0_ + column) >> 2u) + 1u];
                        all = i0_.x;
                        float _e500 = all;
                        all = _e500 + i0_.y;
                        float _e503 = all;
                        all = _e503 + i0_.z;
                        float _e506 = all;
                        all = _e506 + i0_.w;
                        float _e509 = all;
                        all = _e509 + i1_.x;
                        float _e512 = all;
                        all = _e512 + i1_.y;
                        float _e515 = all;
                        all = _e515 + i1_.z;
                        float _e518 = all;
                        all = _e518 + i1_.w;
                        dot0_ = v0_0_ * i0_.x;
                        float _e525 = dot0_;
                        dot0_ = metal::fma(v0_1_, i0_.y, _e525);
                        float _e528 = dot0_;
                        dot0_ = metal::fma(v0_2_, i0_.z, _e528);
                        float _e531 = dot0_;
                        dot0_ = metal::fma(v0_3_, i0_.w, _e531);
                        float _e534 = dot0_;
                        dot0_ = metal::fma(v0_4_, i1_.x, _e534);
                        float _e537 = dot0_;
                        dot0_ = metal::fma(v0_5_, i1_.y, _e537);
                        float _e540 = dot0_;
                        dot0_ = metal::fma(v0_6_, i1_.z, _e540);
                        float _e543 = dot0_;
                        dot0_ = metal::fma(v0_7_, i1_.w, _e543);
                        float _e545 = dot0_;
                        float _e546 = all;
                        float _e547 = acc0_;
                        acc0_ = metal::fma(_e276, _e545, metal::fma(_e283, _e546, _e547));
                        dot1_ = v1_0_ * i0_.x;
                        float _e554 = dot1_;
                        dot1_ = metal::fma(v1_1_, i0_.y, _e554);
                        float _e557 = dot1_;
                        dot1_ = metal::fma(v1_2_, i0_.z, _e557);
                        float _e560 = dot1_;
                        dot1_ = metal::fma(v1_3_, i0_.w, _e560);
                        float _e563 = dot1_;
                        dot1_ = metal::fma(v1_4_, i1_.x, _e563);
                        float _e566 = dot1_;
                        dot1_ = metal::fma(v1_5_, i1_.y, _e566);
                        float _e569 = dot1_;
                        dot1_ = metal::fma(v1_6_, i1_.z, _e569);
                        float _e572 = dot1_;
                        dot1_ = metal::fma(v1_7_, i1_.w, _e572);
                        float _e574 = dot1_;
                        float _e575 = all;
                        float _e576 = acc1_;
                        acc1_ = metal::fma(_e342, _e574, metal::fma(_e349, _e575, _e576));
                        dot2_ = v2_0_ * i0_.x;
                        float _e583 = dot2_;
                        dot2_ = metal::fma(v2_1_, i0_.y, _e583);
                        float _e586 = dot2_;
                        dot2_ = metal::fma(v2_2_, i0_.z, _e586);
                        float _e589 = dot2_;
                        dot2_ = metal::fma(v2_3_, i0_.w, _e589);
                        float _e592 = dot2_;
                        dot2_ = metal::fma(v2_4_, i1_.x, _e592);
                        float _e595 = dot2_;
                        dot2_ = metal::fma(v2_5_, i1_.y, _e595);
                        float _e598 = dot2_;
                        dot2_ = metal::fma(v2_6_, i1_.z, _e598);
                        float _e601 = dot2_;
                        dot2_ = metal::fma(v2_7_, i1_.w, _e601);
                        float _e603 = dot2_;
                        float _e604 = all;
                        float _e605 = acc2_;
                        acc2_ = metal::fma(_e408, _e603, metal::fma(_e415, _e604, _e605));
                        dot3_ = v3_0_ * i0_.x;
                        float _e612 = dot3_;
                        dot3_ = metal::fma(v3_1_, i0_.y, _e612);
                        float _e615 = dot3_;
                        dot3_ = metal::fma(v3_2_, i0_.z, _e615);
                        float _e618 = dot3_;
                        dot3_ = metal::fma(v3_3_, i0_.w, _e618);
                        float _e621 = dot3_;
                        dot3_ = metal::fma(v3_4_, i1_.x, _e621);
                        float _e624 = dot3_;
                        dot3_ = metal::fma(v3_5_, i1_.y, _e624);
                        float _e627 = dot3_;
                        dot3_ = metal::fma(v3_6_, i1_.z, _e627);
                        float _e630 = dot3_;
                        dot3_ = metal::fma(v3_7_, i1_.w, _e630);
                        float _e632 = dot3_;
                        float _e633 = all;
                        float _e634 = acc3_;
                        acc3_ = metal::fma(_e474, _e632, metal::fma(_e481, _e633, _e634));
                    }
                }
            }
            break;
        }
        case 1u: {
            unit_1 = lane;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e1065 = unit_1;
                    unit_1 = _e1065 + 32u;
                }
                loop_init_1 = false;
                uint _e641 = unit_1;
                if (_e641 < units) {
                } else {
                    break;
                }
                {
                    uint _e643 = unit_1;
                    uint column_1 = _e643 * 8u;
                    uint _e647 = unit_1;
                    uint q0_0_1 = slab1_[(w0_ + (_e647 * 1u)) + 0u];
                    float v0_0_1 = static_cast<float>((q0_0_1 >> 0u) & 15u);
                    float v0_1_1 = static_cast<float>((q0_0_1 >> 4u) & 15u);
                    float v0_2_1 = static_cast<float>((q0_0_1 >> 8u) & 15u);
                    float v0_3_1 = static_cast<float>((q0_0_1 >> 12u) & 15u);
                    float v0_4_1 = static_cast<float>((q0_0_1 >> 16u) & 15u);
                    float v0_5_1 = static_cast<float>((q0_0_1 >> 20u) & 15u);
                    float v0_6_1 = static_cast<float>((q0_0_1 >> 24u) & 15u);
                    float v0_7_1 = static_cast<float>((q0_0_1 >> 28u) & 15u);
                    uint g0_1 = s0_ + (column_1 / 64u);
                    uint _e703 = slab1_[scales0_ + (g0_1 >> 1u)];
                    float _e704 = number(_e703, g0_1);
                    uint _e710 = slab1_[biases0_ + (g0_1 >> 1u)];
                    float _e711 = number(_e710, g0_1);
                    uint _e713 = unit_1;
                    uint q1_0_1 = slab1_[(w1_ + (_e713 * 1u)) + 0u];
                    float v1_0_1 = static_cast<float>((q1_0_1 >> 0u) & 15u);
                    float v1_1_1 = static_cast<float>((q1_0_1 >> 4u) & 15u);
                    float v1_2_1 = static_cast<float>((q1_0_1 >> 8u) & 15u);
                    float v1_3_1 = static_cast<float>((q1_0_1 >> 12u) & 15u);
                    float v1_4_1 = static_cast<float>((q1_0_1 >> 16u) & 15u);
                    float v1_5_1 = static_cast<float>((q1_0_1 >> 20u) & 15u);
                    float v1_6_1 = static_cast<float>((q1_0_1 >> 24u) & 15u);
                    float v1_7_1 = static_cast<float>((q1_0_1 >> 28u) & 15u);
                    uint g1_1 = s1_ + (column_1 / 64u);
                    uint _e769 = slab1_[scales1_ + (g1_1 >> 1u)];
                    float _e770 = number(_e769, g1_1);
                    uint _e776 = slab1_[biases1_ + (g1_1 >> 1u)];
                    float _e777 = number(_e776, g1_1);
                    uint _e779 = unit_1;
                    uint q2_0_1 = slab1_[(w2_ + (_e779 * 1u)) + 0u];
                    float v2_0_1 = static_cast<float>((q2_0_1 >> 0u) & 15u);
                    float v2_1_1 = static_cast<float>((q2_0_1 >> 4u) & 15u);
                    float v2_2_1 = static_cast<float>((q2_0_1 >> 8u) & 15u);
                    float v2_3_1 = static_cast<float>((q2_0_1 >> 12u) & 15u);
                    float v2_4_1 = static_cast<float>((q2_0_1 >> 16u) & 15u);
                    float v2_5_1 = static_cast<float>((q2_0_1 >> 20u) & 15u);
                    float v2_6_1 = static_cast<float>((q2_0_1 >> 24u) & 15u);
                    float v2_7_1 = static_cast<float>((q2_0_1 >> 28u) & 15u);
                    uint g2_1 = s2_ + (column_1 / 64u);
                    uint _e835 = slab1_[scales2_ + (g2_1 >> 1u)];
                    float _e836 = number(_e835, g2_1);
                    uint _e842 = slab1_[biases2_ + (g2_1 >> 1u)];
                    float _e843 = number(_e842, g2_1);
                    uint _e845 = unit_1;
                    uint q3_0_1 = slab1_[(w3_ + (_e845 * 1u)) + 0u];
                    float v3_0_1 = static_cast<float>((q3_0_1 >> 0u) & 15u);
                    float v3_1_1 = static_cast<float>((q3_0_1 >> 4u) & 15u);
                    float v3_2_1 = static_cast<float>((q3_0_1 >> 8u) & 15u);
                    float v3_3_1 = static_cast<float>((q3_0_1 >> 12u) & 15u);
                    float v3_4_1 = static_cast<float>((q3_0_1 >> 16u) & 15u);
                    float v3_5_1 = static_cast<float>((q3_0_1 >> 20u) & 15u);
                    float v3_6_1 = static_cast<float>((q3_0_1 >> 24u) & 15u);
                    float v3_7_1 = static_cast<float>((q3_0_1 >> 28u) & 15u);
                    uint g3_1 = s3_ + (column_1 / 64u);
                    uint _e901 = slab1_[scales3_ + (g3_1 >> 1u)];
                    float _e902 = number(_e901, g3_1);
                    uint _e908 = slab1_[biases3_ + (g3_1 >> 1u)];
                    float _e909 = number(_e908, g3_1);
                    {
                        metal::float4 i0_1 = x[((x0_ + column_1) >> 2u) + 0u];
                        metal::float4 i1_1 = x[((x0_ + column_1) >> 2u) + 1u];
                        all_1 = i0_1.x;
                        float _e928 = all_1;
                        all_1 = _e928 + i0_1.y;
                        float _e931 = all_1;
                        all_1 = _e931 + i0_1.z;
                        float _e934 = all_1;
                        all_1 = _e934 + i0_1.w;
                        float _e937 = all_1;
                        all_1 = _e937 + i1_1.x;
                        float _e940 = all_1;
                        all_1 = _e940 + i1_1.y;
                        float _e943 = all_1;
                        all_1 = _e943 + i1_1.z;
                        float _e946 = all_1;
                        all_1 = _e946 + i1_1.w;
                        dot0_1 = v0_0_1 * i0_1.x;
                        float _e953 = dot0_1;
                        dot0_1 = metal::fma(v0_1_1, i0_1.y, _e953);
                        float _e956 = dot0_1;
                        dot0_1 = metal::fma(v0_2_1, i0_1.z, _e956);
                        float _e959 = dot0_1;
                        dot0_1 = metal::fma(v0_3_1, i0_1.w, _e959);
                        float _e962 = dot0_1;
                        dot0_1 = metal::fma(v0_4_1, i1_1.x, _e962);
                        float _e965 = dot0_1;
                        dot0_1 = metal::fma(v0_5_1, i1_1.y, _e965);
                        float _e968 = dot0_1;
                        dot0_1 = metal::fma(v0_6_1, i1_1.z, _e968);
                        float _e971 = dot0_1;
                        dot0_1 = metal::fma(v0_7_1, i1_1.w, _e971);
                        float _e973 = dot0_1;
                        float _e974 = all_1;
                        float _e975 = acc0_;
                        acc0_ = metal::fma(_e704, _e973, metal::fma(_e711, _e974, _e975));
                        dot1_1 = v1_0_1 * i0_1.x;
                        float _e982 = dot1_1;
                        dot1_1 = metal::fma(v1_1_1, i0_1.y, _e982);
                        float _e985 = dot1_1;
                        dot1_1 = metal::fma(v1_2_1, i0_1.z, _e985);
                        float _e988 = dot1_1;
                        dot1_1 = metal::fma(v1_3_1, i0_1.w, _e988);
                        float _e991 = dot1_1;
                        dot1_1 = metal::fma(v1_4_1, i1_1.x, _e991);
                        float _e994 = dot1_1;
                        dot1_1 = metal::fma(v1_5_1, i1_1.y, _e994);
                        float _e997 = dot1_1;
                        dot1_1 = metal::fma(v1_6_1, i1_1.z, _e997);
                        float _e1000 = dot1_1;
                        dot1_1 = metal::fma(v1_7_1, i1_1.w, _e1000);
                        float _e1002 = dot1_1;
                        float _e1003 = all_1;
                        float _e1004 = acc1_;
                        acc1_ = metal::fma(_e770, _e1002, metal::fma(_e777, _e1003, _e1004));
                        dot2_1 = v2_0_1 * i0_1.x;
                        float _e1011 = dot2_1;
                        dot2_1 = metal::fma(v2_1_1, i0_1.y, _e1011);
                        float _e1014 = dot2_1;
                        dot2_1 = metal::fma(v2_2_1, i0_1.z, _e1014);
                        float _e1017 = dot2_1;
                        dot2_1 = metal::fma(v2_3_1, i0_1.w, _e1017);
                        float _e1020 = dot2_1;
                        dot2_1 = metal::fma(v2_4_1, i1_1.x, _e1020);
                        float _e1023 = dot2_1;
                        dot2_1 = metal::fma(v2_5_1, i1_1.y, _e1023);
                        float _e1026 = dot2_1;
                        dot2_1 = metal::fma(v2_6_1, i1_1.z, _e1026);
                        float _e1029 = dot2_1;
                        dot2_1 = metal::fma(v2_7_1, i1_1.w, _e1029);
                        float _e1031 = dot2_1;
                        float _e1032 = all_1;
                        float _e1033 = acc2_;
                        acc2_ = metal::fma(_e836, _e1031, metal::fma(_e843, _e1032, _e1033));
                        dot3_1 = v3_0_1 * i0_1.x;
                        float _e1040 = dot3_1;
                        dot3_1 = metal::fma(v3_1_1, i0_1.y, _e1040);
                        float _e1043 = dot3_1;
                        dot3_1 = metal::fma(v3_2_1, i0_1.z, _e1043);
                        float _e1046 = dot3_1;
                        dot3_1 = metal::fma(v3_3_1, i0_1.w, _e1046);
                        float _e1049 = dot3_1;
                        dot3_1 = metal::fma(v3_4_1, i1_1.x, _e1049);
                        float _e1052 = dot3_1;
                        dot3_1 = metal::fma(v3_5_1, i1_1.y, _e1052);
                        float _e1055 = dot3_1;
                        dot3_1 = metal::fma(v3_6_1, i1_1.z, _e1055);
                        float _e1058 = dot3_1;
                        dot3_1 = metal::fma(v3_7_1, i1_1.w, _e1058);
                        float _e1060 = dot3_1;
                        float _e1061 = all_1;
                        float _e1062 = acc3_;
                        acc3_ = metal::fma(_e902, _e1060, metal::fma(_e909, _e1061, _e1062));
                    }
                }
            }
            break;
        }
        default: {
            break;
        }
    }
    float _e1077 = acc0_;
    red.inner[(((team * 4u) + 0u) * 32u) + lane] = _e1077;
    float _e1087 = acc1_;
    red.inner[(((team * 4u) + 1u) * 32u) + lane] = _e1087;
    float _e1097 = acc2_;
    red.inner[(((team * 4u) + 2u) * 32u) + lane] = _e1097;
    float _e1107 = acc3_;
    red.inner[(((team * 4u) + 3u) * 32u) + lane] = _e1107;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 4u) {
        uint slot = (team * 4u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e1133 = red.inner[at];
        float _e1138 = red.inner[at + 1u];
        float _e1144 = red.inner[at + 2u];
        float _e1149 = red.inner[at + 3u];
        float _e1156 = red.inner[at + 4u];
        float _e1161 = red.inner[at + 5u];
        float _e1167 = red.inner[at + 6u];
        float _e1172 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e1133 + _e1138) + (_e1144 + _e1149)) + ((_e1156 + _e1161) + (_e1167 + _e1172));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint at_1 = ((team * 4u) + lane) * 4u;
        float _e1185 = part.inner[at_1];
        float _e1190 = part.inner[at_1 + 1u];
        float _e1196 = part.inner[at_1 + 2u];
        float _e1201 = part.inner[at_1 + 3u];
        float sum = (_e1185 + _e1190) + (_e1196 + _e1201);
        uint n = 0u + lane;
        uint r = n % 4u;
        uint t = n / 4u;
        fin.inner[(team * 8u) + lane] = sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint n_1 = 0u + lane;
        uint r_1 = n_1 % 4u;
        uint t_1 = n_1 / 4u;
        pair = pair0_;
        float up = fin.inner[metal::min(((team * 8u) + lane) + 2u, 63u)];
        float gate = fin.inner[(team * 8u) + lane];
        if (r_1 < 2u) {
            uint _e1247 = p.rows;
            local_1 = (first + r_1) < _e1247;
        } else {
            local_1 = false;
        }
        bool _e1250 = local_1;
        if (_e1250) {
            local_2 = t_1 < count;
        } else {
            local_2 = false;
        }
        bool _e1255 = local_2;
        if (_e1255) {
            uint _e1257 = pair;
            uint _e1260 = p.rows;
            y[((_e1257 * _e1260) + first) + r_1] = (gate / (1.0 + metal::exp(-(gate)))) * up;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}
