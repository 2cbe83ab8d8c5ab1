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
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_7& part
, threadgroup type_8& fin
, constant _mslBufferSizes& _buffer_sizes [[buffer(8)]]
) {
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
    bool local = {};
    bool local_1 = {};
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint first = ((wid.x * 8u) + team) * 2u;
    uint _e14 = p.columns;
    uint units = _e14 / 8u;
    uint _e19 = p.first_tile;
    uint tile = (_e19 + wid.y) * 3u;
    uint start = tiles[tile + 1u];
    uint count = tiles[tile + 2u];
    uint _e37 = p.layer;
    uint _e40 = tiles[tile];
    uint word_1 = table[_e37 + _e40];
    uint _e50 = p.slot_words;
    uint base = ((word_1 & 16777215u) - 1u) * _e50;
    uint _e56 = p.rows;
    uint row0_ = metal::min(first + 0u, _e56 - 1u);
    uint _e62 = p.w0_;
    uint m0_ = base + _e62;
    uint _e66 = p.row_words;
    uint w0_ = m0_ + (row0_ * _e66);
    uint _e71 = p.row_groups;
    uint s0_ = row0_ * _e71;
    uint _e75 = p.s0_;
    uint scales0_ = base + _e75;
    uint _e79 = p.b0_;
    uint biases0_ = base + _e79;
    uint _e85 = p.rows;
    uint row1_ = metal::min(first + 1u, _e85 - 1u);
    uint _e91 = p.w0_;
    uint m1_ = base + _e91;
    uint _e95 = p.row_words;
    uint w1_ = m1_ + (row1_ * _e95);
    uint _e100 = p.row_groups;
    uint s1_ = row1_ * _e100;
    uint _e104 = p.s0_;
    uint scales1_ = base + _e104;
    uint _e108 = p.b0_;
    uint biases1_ = base + _e108;
    uint _e114 = p.rows;
    uint row2_ = metal::min(first + 0u, _e114 - 1u);
    uint _e120 = p.w1_;
    uint m2_ = base + _e120;
    uint _e124 = p.row_words;
    uint w2_ = m2_ + (row2_ * _e124);
    uint _e129 = p.row_groups;
    uint s2_ = row2_ * _e129;
    uint _e133 = p.s1_;
    uint scales2_ = base + _e133;
    uint _e137 = p.b1_;
    uint biases2_ = base + _e137;
    uint _e143 = p.rows;
    uint row3_ = metal::min(first + 1u, _e143 - 1u);
    uint _e149 = p.w1_;
    uint m3_ = base + _e149;
    uint _e153 = p.row_words;
    uint w3_ = m3_ + (row3_ * _e153);
    uint _e158 = p.row_groups;
    uint s3_ = row3_ * _e158;
    uint _e162 = p.s1_;
    uint scales3_ = base + _e162;
    uint _e166 = p.b1_;
    uint biases3_ = base + _e166;
    uint pair0_ = order[start + metal::min(0u, count - 1u)];
    uint _e178 = p.share;
    uint _e182 = p.columns;
    uint x0_ = (pair0_ / _e178) * _e182;
    switch(word_1 >> 24u) {
        case 0u: {
            unit = lane;
            bool loop_init = true;
            while(true) {
                if (!loop_init) {
                    uint _e619 = unit;
                    unit = _e619 + 32u;
                }
                loop_init = false;
                uint _e195 = unit;
                if (_e195 < units) {
                } else {
                    break;
                }
                {
                    uint _e197 = unit;
                    uint column = _e197 * 8u;
                    uint _e201 = unit;
                    uint q0_0_ = slab0_[(w0_ + (_e201 * 1u)) + 0u];
                    float v0_0_ = static_cast<float>((q0_0_ >> 0u) & 15u);
                    float v0_1_ = static_cast<float>((q0_0_ >> 4u) & 15u);
                    float v0_2_ = static_cast<float>((q0_0_ >> 8u) & 15u);
                    float v0_3_ = static_cast<float>((q0_0_ >> 12u) & 15u);
                    float v0_4_ = static_cast<float>((q0_0_ >> 16u) & 15u);
                    float v0_5_ = static_cast<float>((q0_0_ >> 20u) & 15u);
                    float v0_6_ = static_cast<float>((q0_0_ >> 24u) & 15u);
                    float v0_7_ = static_cast<float>((q0_0_ >> 28u) & 15u);
                    uint g0_ = s0_ + (column / 64u);
                    uint _e257 = slab0_[scales0_ + (g0_ >> 1u)];
                    float _e258 = number(_e257, g0_);
                    uint _e264 = slab0_[biases0_ + (g0_ >> 1u)];
                    float _e265 = number(_e264, g0_);
                    uint _e267 = unit;
                    uint q1_0_ = slab0_[(w1_ + (_e267 * 1u)) + 0u];
                    float v1_0_ = static_cast<float>((q1_0_ >> 0u) & 15u);
                    float v1_1_ = static_cast<float>((q1_0_ >> 4u) & 15u);
                    float v1_2_ = static_cast<float>((q1_0_ >> 8u) & 15u);
                    float v1_3_ = static_cast<float>((q1_0_ >> 12u) & 15u);
                    float v1_4_ = static_cast<float>((q1_0_ >> 16u) & 15u);
                    float v1_5_ = static_cast<float>((q1_0_ >> 20u) & 15u);
                    float v1_6_ = static_cast<float>((q1_0_ >> 24u) & 15u);
                    float v1_7_ = static_cast<float>((q1_0_ >> 28u) & 15u);
                    uint g1_ = s1_ + (column / 64u);
                    uint _e323 = slab0_[scales1_ + (g1_ >> 1u)];
                    float _e324 = number(_e323, g1_);
                    uint _e330 = slab0_[biases1_ + (g1_ >> 1u)];
                    float _e331 = number(_e330, g1_);
                    uint _e333 = unit;
                    uint q2_0_ = slab0_[(w2_ + (_e333 * 1u)) + 0u];
                    float v2_0_ = static_cast<float>((q2_0_ >> 0u) & 15u);
                    float v2_1_ = static_cast<float>((q2_0_ >> 4u) & 15u);
                    float v2_2_ = static_cast<float>((q2_0_ >> 8u) & 15u);
                    float v2_3_ = static_cast<float>((q2_0_ >> 12u) & 15u);
                    float v2_4_ = static_cast<float>((q2_0_ >> 16u) & 15u);
                    float v2_5_ = static_cast<float>((q2_0_ >> 20u) & 15u);
                    float v2_6_ = static_cast<float>((q2_0_ >> 24u) & 15u);
                    float v2_7_ = static_cast<float>((q2_0_ >> 28u) & 15u);
                    uint g2_ = s2_ + (column / 64u);
                    uint _e389 = slab0_[scales2_ + (g2_ >> 1u)];
                    float _e390 = number(_e389, g2_);
                    uint _e396 = slab0_[biases2_ + (g2_ >> 1u)];
                    float _e397 = number(_e396, g2_);
                    uint _e399 = unit;
                    uint q3_0_ = slab0_[(w3_ + (_e399 * 1u)) + 0u];
                    float v3_0_ = static_cast<float>((q3_0_ >> 0u) & 15u);
                    float v3_1_ = static_cast<float>((q3_0_ >> 4u) & 15u);
                    float v3_2_ = static_cast<float>((q3_0_ >> 8u) & 15u);
                    float v3_3_ = static_cast<float>((q3_0_ >> 12u) & 15u);
                    float v3_4_ = static_cast<float>((q3_0_ >> 16u) & 15u);
                    float v3_5_ = static_cast<float>((q3_0_ >> 20u) & 15u);
                    float v3_6_ = static_cast<float>((q3_0_ >> 24u) & 15u);
                    float v3_7_ = static_cast<float>((q3_0_ >> 28u) & 15u);
                    uint g3_ = s3_ + (column / 64u);
                    uint _e455 = slab0_[scales3_ + (g3_ >> 1u)];
                    float _e456 = number(_e455, g3_);
                    uint _e462 = slab0_[biases3_ + (g3_ >> 1u)];
                    float _e463 = number(_e462, g3_);
                    {
                        metal::float4 i0_ = x[((x0_ + column) >> 2u) + 0u];
                        metal::float4 i1_ = x[((x0_ + column) >> 2u) + 1u];
                        all = i0_.x;
                        float _e482 = all;
                        all = _e482 + i0_.y;
                        float _e485 = all;
                        all = _e485 + i0_.z;
                        float _e488 = all;
                        all = _e488 + i0_.w;
                        float _e491 = all;
                        all = _e491 + i1_.x;
                        float _e494 = all;
                        all = _e494 + i1_.y;
                        float _e497 = all;
                        all = _e497 + i1_.z;
                        float _e500 = all;
                        all = _e500 + i1_.w;
                        dot0_ = v0_0_ * i0_.x;
                        float _e507 = dot0_;
                        dot0_ = metal::fma(v0_1_, i0_.y, _e507);
                        float _e510 = dot0_;
                        dot0_ = metal::fma(v0_2_, i0_.z, _e510);
                        float _e513 = dot0_;
                        dot0_ = metal::fma(v0_3_, i0_.w, _e513);
                        float _e516 = dot0_;
                        dot0_ = metal::fma(v0_4_, i1_.x, _e516);
                        float _e519 = dot0_;
                        dot0_ = metal::fma(v0_5_, i1_.y, _e519);
                        float _e522 = dot0_;
                        dot0_ = metal::fma(v0_6_, i1_.z, _e522);
                        float _e525 = dot0_;
                        dot0_ = metal::fma(v0_7_, i1_.w, _e525);
                        float _e527 = dot0_;
                        float _e528 = all;
                        float _e529 = acc0_;
                        acc0_ = metal::fma(_e258, _e527, metal::fma(_e265, _e528, _e529));
                        dot1_ = v1_0_ * i0_.x;
                        float _e536 = dot1_;
                        dot1_ = metal::fma(v1_1_, i0_.y, _e536);
                        float _e539 = dot1_;
                        dot1_ = metal::fma(v1_2_, i0_.z, _e539);
                        float _e542 = dot1_;
                        dot1_ = metal::fma(v1_3_, i0_.w, _e542);
                        float _e545 = dot1_;
                        dot1_ = metal::fma(v1_4_, i1_.x, _e545);
                        float _e548 = dot1_;
                        dot1_ = metal::fma(v1_5_, i1_.y, _e548);
                        float _e551 = dot1_;
                        dot1_ = metal::fma(v1_6_, i1_.z, _e551);
                        float _e554 = dot1_;
                        dot1_ = metal::fma(v1_7_, i1_.w, _e554);
                        float _e556 = dot1_;
                        float _e557 = all;
                        float _e558 = acc1_;
                        acc1_ = metal::fma(_e324, _e556, metal::fma(_e331, _e557, _e558));
                        dot2_ = v2_0_ * i0_.x;
                        float _e565 = dot2_;
                        dot2_ = metal::fma(v2_1_, i0_.y, _e565);
                        float _e568 = dot2_;
                        dot2_ = metal::fma(v2_2_, i0_.z, _e568);
                        float _e571 = dot2_;
                        dot2_ = metal::fma(v2_3_, i0_.w, _e571);
                        float _e574 = dot2_;
                        dot2_ = metal::fma(v2_4_, i1_.x, _e574);
                        float _e577 = dot2_;
                        dot2_ = metal::fma(v2_5_, i1_.y, _e577);
                        float _e580 = dot2_;
                        dot2_ = metal::fma(v2_6_, i1_.z, _e580);
                        float _e583 = dot2_;
                        dot2_ = metal::fma(v2_7_, i1_.w, _e583);
                        float _e585 = dot2_;
                        float _e586 = all;
                        float _e587 = acc2_;
                        acc2_ = metal::fma(_e390, _e585, metal::fma(_e397, _e586, _e587));
                        dot3_ = v3_0_ * i0_.x;
                        float _e594 = dot3_;
                        dot3_ = metal::fma(v3_1_, i0_.y, _e594);
                        float _e597 = dot3_;
                        dot3_ = metal::fma(v3_2_, i0_.z, _e597);
                        float _e600 = dot3_;
                        dot3_ = metal::fma(v3_3_, i0_.w, _e600);
                        float _e603 = dot3_;
                        dot3_ = metal::fma(v3_4_, i1_.x, _e603);
                        float _e606 = dot3_;
                        dot3_ = metal::fma(v3_5_, i1_.y, _e606);
                        float _e609 = dot3_;
                        dot3_ = metal::fma(v3_6_, i1_.z, _e609);
                        float _e612 = dot3_;
                        dot3_ = metal::fma(v3_7_, i1_.w, _e612);
                        float _e614 = dot3_;
                        float _e615 = all;
                        float _e616 = acc3_;
                        acc3_ = metal::fma(_e456, _e614, metal::fma(_e463, _e615, _e616));
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
                    uint _e1047 = unit_1;
                    unit_1 = _e1047 + 32u;
                }
                loop_init_1 = false;
                uint _e623 = unit_1;
                if (_e623 < units) {
                } else {
                    break;
                }
                {
                    uint _e625 = unit_1;
                    uint column_1 = _e625 * 8u;
                    uint _e629 = unit_1;
                    uint q0_0_1 = slab1_[(w0_ + (_e629 * 1u)) + 0u];
                    float v0_0_1 = static_cast<float>((q0_0_1 >> 0u) & 15u);
                    float v0_1_1 = static_cast<float>((q0_0_1 >> 4u) & 15u);
                    float v0_2_1 = static_cast<float>((q0_0_1 >> 8u) & 15u);
                    float v0_3_1 = static_cast<float>((q0_0_1 >> 12u) & 15u);
                    float v0_4_1 = static_cast<float>((q0_0_1 >> 16u) & 15u);
                    float v0_5_1 = static_cast<float>((q0_0_1 >> 20u) & 15u);
                    float v0_6_1 = static_cast<float>((q0_0_1 >> 24u) & 15u);
                    float v0_7_1 = static_cast<float>((q0_0_1 >> 28u) & 15u);
                    uint g0_1 = s0_ + (column_1 / 64u);
                    uint _e685 = slab1_[scales0_ + (g0_1 >> 1u)];
                    float _e686 = number(_e685, g0_1);
                    uint _e692 = slab1_[biases0_ + (g0_1 >> 1u)];
                    float _e693 = number(_e692, g0_1);
                    uint _e695 = unit_1;
                    uint q1_0_1 = slab1_[(w1_ + (_e695 * 1u)) + 0u];
                    float v1_0_1 = static_cast<float>((q1_0_1 >> 0u) & 15u);
                    float v1_1_1 = static_cast<float>((q1_0_1 >> 4u) & 15u);
                    float v1_2_1 = static_cast<float>((q1_0_1 >> 8u) & 15u);
                    float v1_3_1 = static_cast<float>((q1_0_1 >> 12u) & 15u);
                    float v1_4_1 = static_cast<float>((q1_0_1 >> 16u) & 15u);
                    float v1_5_1 = static_cast<float>((q1_0_1 >> 20u) & 15u);
                    float v1_6_1 = static_cast<float>((q1_0_1 >> 24u) & 15u);
                    float v1_7_1 = static_cast<float>((q1_0_1 >> 28u) & 15u);
                    uint g1_1 = s1_ + (column_1 / 64u);
                    uint _e751 = slab1_[scales1_ + (g1_1 >> 1u)];
                    float _e752 = number(_e751, g1_1);
                    uint _e758 = slab1_[biases1_ + (g1_1 >> 1u)];
                    float _e759 = number(_e758, g1_1);
                    uint _e761 = unit_1;
                    uint q2_0_1 = slab1_[(w2_ + (_e761 * 1u)) + 0u];
                    float v2_0_1 = static_cast<float>((q2_0_1 >> 0u) & 15u);
                    float v2_1_1 = static_cast<float>((q2_0_1 >> 4u) & 15u);
                    float v2_2_1 = static_cast<float>((q2_0_1 >> 8u) & 15u);
                    float v2_3_1 = static_cast<float>((q2_0_1 >> 12u) & 15u);
                    float v2_4_1 = static_cast<float>((q2_0_1 >> 16u) & 15u);
                    float v2_5_1 = static_cast<float>((q2_0_1 >> 20u) & 15u);
                    float v2_6_1 = static_cast<float>((q2_0_1 >> 24u) & 15u);
                    float v2_7_1 = static_cast<float>((q2_0_1 >> 28u) & 15u);
                    uint g2_1 = s2_ + (column_1 / 64u);
                    uint _e817 = slab1_[scales2_ + (g2_1 >> 1u)];
                    float _e818 = number(_e817, g2_1);
                    uint _e824 = slab1_[biases2_ + (g2_1 >> 1u)];
                    float _e825 = number(_e824, g2_1);
                    uint _e827 = unit_1;
                    uint q3_0_1 = slab1_[(w3_ + (_e827 * 1u)) + 0u];
                    float v3_0_1 = static_cast<float>((q3_0_1 >> 0u) & 15u);
                    float v3_1_1 = static_cast<float>((q3_0_1 >> 4u) & 15u);
                    float v3_2_1 = static_cast<float>((q3_0_1 >> 8u) & 15u);
                    float v3_3_1 = static_cast<float>((q3_0_1 >> 12u) & 15u);
                    float v3_4_1 = static_cast<float>((q3_0_1 >> 16u) & 15u);
                    float v3_5_1 = static_cast<float>((q3_0_1 >> 20u) & 15u);
                    float v3_6_1 = static_cast<float>((q3_0_1 >> 24u) & 15u);
                    float v3_7_1 = static_cast<float>((q3_0_1 >> 28u) & 15u);
                    uint g3_1 = s3_ + (column_1 / 64u);
                    uint _e883 = slab1_[scales3_ + (g3_1 >> 1u)];
                    float _e884 = number(_e883, g3_1);
                    uint _e890 = slab1_[biases3_ + (g3_1 >> 1u)];
                    float _e891 = number(_e890, g3_1);
                    {
                        metal::float4 i0_1 = x[((x0_ + column_1) >> 2u) + 0u];
                        metal::float4 i1_1 = x[((x0_ + column_1) >> 2u) + 1u];
                        all_1 = i0_1.x;
                        float _e910 = all_1;
                        all_1 = _e910 + i0_1.y;
                        float _e913 = all_1;
                        all_1 = _e913 + i0_1.z;
                        float _e916 = all_1;
                        all_1 = _e916 + i0_1.w;
                        float _e919 = all_1;
                        all_1 = _e919 + i1_1.x;
                        float _e922 = all_1;
                        all_1 = _e922 + i1_1.y;
                        float _e925 = all_1;
                        all_1 = _e925 + i1_1.z;
                        float _e928 = all_1;
                        all_1 = _e928 + i1_1.w;
                        dot0_1 = v0_0_1 * i0_1.x;
                        float _e935 = dot0_1;
                        dot0_1 = metal::fma(v0_1_1, i0_1.y, _e935);
                        float _e938 = dot0_1;
                        dot0_1 = metal::fma(v0_2_1, i0_1.z, _e938);
                        float _e941 = dot0_1;
                        dot0_1 = metal::fma(v0_3_1, i0_1.w, _e941);
                        float _e944 = dot0_1;
                        dot0_1 = metal::fma(v0_4_1, i1_1.x, _e944);
                        float _e947 = dot0_1;
                        dot0_1 = metal::fma(v0_5_1, i1_1.y, _e947);
                        float _e950 = dot0_1;
                        dot0_1 = metal::fma(v0_6_1, i1_1.z, _e950);
                        float _e953 = dot0_1;
                        dot0_1 = metal::fma(v0_7_1, i1_1.w, _e953);
                        float _e955 = dot0_1;
                        float _e956 = all_1;
                        float _e957 = acc0_;
                        acc0_ = metal::fma(_e686, _e955, metal::fma(_e693, _e956, _e957));
                        dot1_1 = v1_0_1 * i0_1.x;
                        float _e964 = dot1_1;
                        dot1_1 = metal::fma(v1_1_1, i0_1.y, _e964);
                        float _e967 = dot1_1;
                        dot1_1 = metal::fma(v1_2_1, i0_1.z, _e967);
                        float _e970 = dot1_1;
                        dot1_1 = metal::fma(v1_3_1, i0_1.w, _e970);
                        float _e973 = dot1_1;
                        dot1_1 = metal::fma(v1_4_1, i1_1.x, _e973);
                        float _e976 = dot1_1;
                        dot1_1 = metal::fma(v1_5_1, i1_1.y, _e976);
                        float _e979 = dot1_1;
                        dot1_1 = metal::fma(v1_6_1, i1_1.z, _e979);
                        float _e982 = dot1_1;
                        dot1_1 = metal::fma(v1_7_1, i1_1.w, _e982);
                        float _e984 = dot1_1;
                        float _e985 = all_1;
                        float _e986 = acc1_;
                        acc1_ = metal::fma(_e752, _e984, metal::fma(_e759, _e985, _e986));
                        dot2_1 = v2_0_1 * i0_1.x;
                        float _e993 = dot2_1;
                        dot2_1 = metal::fma(v2_1_1, i0_1.y, _e993);
                        float _e996 = dot2_1;
                        dot2_1 = metal::fma(v2_2_1, i0_1.z, _e996);
                        float _e999 = dot2_1;
                        dot2_1 = metal::fma(v2_3_1, i0_1.w, _e999);
                        float _e1002 = dot2_1;
                        dot2_1 = metal::fma(v2_4_1, i1_1.x, _e1002);
                        float _e1005 = dot2_1;
                        dot2_1 = metal::fma(v2_5_1, i1_1.y, _e1005);
                        float _e1008 = dot2_1;
                        dot2_1 = metal::fma(v2_6_1, i1_1.z, _e1008);
                        float _e1011 = dot2_1;
                        dot2_1 = metal::fma(v2_7_1, i1_1.w, _e1011);
                        float _e1013 = dot2_1;
                        float _e1014 = all_1;
                        float _e1015 = acc2_;
                        acc2_ = metal::fma(_e818, _e1013, metal::fma(_e825, _e1014, _e1015));
                        dot3_1 = v3_0_1 * i0_1.x;
                        float _e1022 = dot3_1;
                        dot3_1 = metal::fma(v3_1_1, i0_1.y, _e1022);
                        float _e1025 = dot3_1;
                        dot3_1 = metal::fma(v3_2_1, i0_1.z, _e1025);
                        float _e1028 = dot3_1;
                        dot3_1 = metal::fma(v3_3_1, i0_1.w, _e1028);
                        float _e1031 = dot3_1;
                        dot3_1 = metal::fma(v3_4_1, i1_1.x, _e1031);
                        float _e1034 = dot3_1;
                        dot3_1 = metal::fma(v3_5_1, i1_1.y, _e1034);
                        float _e1037 = dot3_1;
                        dot3_1 = metal::fma(v3_6_1, i1_1.z, _e1037);
                        float _e1040 = dot3_1;
                        dot3_1 = metal::fma(v3_7_1, i1_1.w, _e1040);
                        float _e1042 = dot3_1;
                        float _e1043 = all_1;
                        float _e1044 = acc3_;
                        acc3_ = metal::fma(_e884, _e1042, metal::fma(_e891, _e1043, _e1044));
                    }
                }
            }
            break;
        }
        default: {
            break;
        }
    }
    float _e1059 = acc0_;
    red.inner[(((team * 4u) + 0u) * 32u) + lane] = _e1059;
    float _e1069 = acc1_;
    red.inner[(((team * 4u) + 1u) * 32u) + lane] = _e1069;
    float _e1079 = acc2_;
    red.inner[(((team * 4u) + 2u) * 32u) + lane] = _e1079;
    float _e1089 = acc3_;
    red.inner[(((team * 4u) + 3u) * 32u) + lane] = _e1089;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 4u) {
        uint slot = (team * 4u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e1115 = red.inner[at];
        float _e1120 = red.inner[at + 1u];
        float _e1126 = red.inner[at + 2u];
        float _e1131 = red.inner[at + 3u];
        float _e1138 = red.inner[at + 4u];
        float _e1143 = red.inner[at + 5u];
        float _e1149 = red.inner[at + 6u];
        float _e1154 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e1115 + _e1120) + (_e1126 + _e1131)) + ((_e1138 + _e1143) + (_e1149 + _e1154));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint at_1 = ((team * 4u) + lane) * 4u;
        float _e1167 = part.inner[at_1];
        float _e1172 = part.inner[at_1 + 1u];
        float _e1178 = part.inner[at_1 + 2u];
        float _e1183 = part.inner[at_1 + 3u];
        float sum = (_e1167 + _e1172) + (_e1178 + _e1183);
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
            uint _e1229 = p.rows;
            local = (first + r_1) < _e1229;
        } else {
            local = false;
        }
        bool _e1232 = local;
        if (_e1232) {
            local_1 = t_1 < count;
        } else {
            local_1 = false;
        }
        bool _e1237 = local_1;
        if (_e1237) {
            uint _e1239 = pair;
            uint _e1242 = p.rows;
            y[((_e1239 * _e1242) + first) + r_1] = (gate / (1.0 + metal::exp(-(gate)))) * up;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}
