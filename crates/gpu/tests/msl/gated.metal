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
};
struct type_8 {
    float inner[64];
};
struct type_9 {
    float inner[512];
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
, device type_2 const& w0_ [[buffer(1)]]
, device type_3 const& scales0_ [[buffer(2)]]
, device type_3 const& biases0_ [[buffer(3)]]
, device type_2 const& w1_ [[buffer(4)]]
, device type_3 const& scales1_ [[buffer(5)]]
, device type_3 const& biases1_ [[buffer(6)]]
, device type_6 const& x [[buffer(7)]]
, device type_7& y [[buffer(8)]]
, device type_3 const& control [[buffer(9)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& fin
, threadgroup type_9& red
, threadgroup type_8& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(10)]]
) {
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    uint unit = {};
    float all0_ = {};
    float dot0_ = {};
    float dot1_ = {};
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint _e13 = p.columns;
    uint units = _e13 / 32u;
    uint first = ((wid.x * 8u) + team) * 1u;
    uint _e27 = p.rows;
    uint row0_ = metal::min(first + 0u, _e27 - 1u);
    uint _e35 = p.rows;
    uint row1_ = metal::min(first + 0u, _e35 - 1u);
    uint _e41 = p.row_words;
    uint w0_1 = row0_ * _e41;
    uint _e45 = p.row_groups;
    uint s0_ = row0_ * _e45;
    uint _e49 = p.row_words;
    uint w1_1 = row1_ * _e49;
    uint _e53 = p.row_groups;
    uint s1_ = row1_ * _e53;
    unit = lane;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e802 = unit;
            unit = _e802 + 32u;
        }
        loop_init = false;
        uint _e60 = unit;
        if (_e60 < units) {
        } else {
            break;
        }
        {
            uint _e62 = unit;
            uint column = _e62 * 32u;
            uint _e66 = unit;
            metal::uint4 u0_ = w0_[(w0_1 + (_e66 * 4u)) / 4u];
            uint q0_0_0_ = u0_.x;
            uint q0_1_0_ = u0_.y;
            uint q0_2_0_ = u0_.z;
            uint q0_3_0_ = u0_.w;
            uint g0_ = s0_ + (column / 64u);
            uint _e85 = scales0_[g0_ >> 1u];
            float _e86 = number(_e85, g0_);
            uint _e91 = biases0_[g0_ >> 1u];
            float _e92 = number(_e91, g0_);
            uint _e94 = unit;
            metal::uint4 u1_ = w1_[(w1_1 + (_e94 * 4u)) / 4u];
            uint q1_0_0_ = u1_.x;
            uint q1_1_0_ = u1_.y;
            uint q1_2_0_ = u1_.z;
            uint q1_3_0_ = u1_.w;
            uint g1_ = s1_ + (column / 64u);
            uint _e113 = scales1_[g1_ >> 1u];
            float _e114 = number(_e113, g1_);
            uint _e119 = biases1_[g1_ >> 1u];
            float _e120 = number(_e119, g1_);
            float v0_0_0_ = static_cast<float>((q0_0_0_ >> 0u) & 15u);
            float v0_0_1_ = static_cast<float>((q0_0_0_ >> 4u) & 15u);
            float v0_0_2_ = static_cast<float>((q0_0_0_ >> 8u) & 15u);
            float v0_0_3_ = static_cast<float>((q0_0_0_ >> 12u) & 15u);
            float v0_0_4_ = static_cast<float>((q0_0_0_ >> 16u) & 15u);
            float v0_0_5_ = static_cast<float>((q0_0_0_ >> 20u) & 15u);
            float v0_0_6_ = static_cast<float>((q0_0_0_ >> 24u) & 15u);
            float v0_0_7_ = static_cast<float>((q0_0_0_ >> 28u) & 15u);
            float v0_1_0_ = static_cast<float>((q1_0_0_ >> 0u) & 15u);
            float v0_1_1_ = static_cast<float>((q1_0_0_ >> 4u) & 15u);
            float v0_1_2_ = static_cast<float>((q1_0_0_ >> 8u) & 15u);
            float v0_1_3_ = static_cast<float>((q1_0_0_ >> 12u) & 15u);
            float v0_1_4_ = static_cast<float>((q1_0_0_ >> 16u) & 15u);
            float v0_1_5_ = static_cast<float>((q1_0_0_ >> 20u) & 15u);
            float v0_1_6_ = static_cast<float>((q1_0_0_ >> 24u) & 15u);
            float v0_1_7_ = static_cast<float>((q1_0_0_ >> 28u) & 15u);
            metal::float4 i0_0_ = x[((0u + column) >> 2u) + 0u];
            metal::float4 i0_1_ = x[((0u + column) >> 2u) + 1u];
            all0_ = i0_0_.x;
            float _e219 = all0_;
            all0_ = _e219 + i0_0_.y;
            float _e222 = all0_;
            all0_ = _e222 + i0_0_.z;
            float _e225 = all0_;
            all0_ = _e225 + i0_0_.w;
            float _e228 = all0_;
            all0_ = _e228 + i0_1_.x;
            float _e231 = all0_;
            all0_ = _e231 + i0_1_.y;
            float _e234 = all0_;
            all0_ = _e234 + i0_1_.z;
            float _e237 = all0_;
            all0_ = _e237 + i0_1_.w;
            dot0_ = v0_0_0_ * i0_0_.x;
            float _e244 = dot0_;
            dot0_ = metal::fma(v0_0_1_, i0_0_.y, _e244);
            float _e247 = dot0_;
            dot0_ = metal::fma(v0_0_2_, i0_0_.z, _e247);
            float _e250 = dot0_;
            dot0_ = metal::fma(v0_0_3_, i0_0_.w, _e250);
            float _e253 = dot0_;
            dot0_ = metal::fma(v0_0_4_, i0_1_.x, _e253);
            float _e256 = dot0_;
            dot0_ = metal::fma(v0_0_5_, i0_1_.y, _e256);
            float _e259 = dot0_;
            dot0_ = metal::fma(v0_0_6_, i0_1_.z, _e259);
            float _e262 = dot0_;
            dot0_ = metal::fma(v0_0_7_, i0_1_.w, _e262);
            dot1_ = v0_1_0_ * i0_0_.x;
            float _e268 = dot1_;
            dot1_ = metal::fma(v0_1_1_, i0_0_.y, _e268);
            float _e271 = dot1_;
            dot1_ = metal::fma(v0_1_2_, i0_0_.z, _e271);
            float _e274 = dot1_;
            dot1_ = metal::fma(v0_1_3_, i0_0_.w, _e274);
            float _e277 = dot1_;
            dot1_ = metal::fma(v0_1_4_, i0_1_.x, _e277);
            float _e280 = dot1_;
            dot1_ = metal::fma(v0_1_5_, i0_1_.y, _e280);
            float _e283 = dot1_;
            dot1_ = metal::fma(v0_1_6_, i0_1_.z, _e283);
            float _e286 = dot1_;
            dot1_ = metal::fma(v0_1_7_, i0_1_.w, _e286);
            float v1_0_0_ = static_cast<float>((q0_1_0_ >> 0u) & 15u);
            float v1_0_1_ = static_cast<float>((q0_1_0_ >> 4u) & 15u);
            float v1_0_2_ = static_cast<float>((q0_1_0_ >> 8u) & 15u);
            float v1_0_3_ = static_cast<float>((q0_1_0_ >> 12u) & 15u);
            float v1_0_4_ = static_cast<float>((q0_1_0_ >> 16u) & 15u);
            float v1_0_5_ = static_cast<float>((q0_1_0_ >> 20u) & 15u);
            float v1_0_6_ = static_cast<float>((q0_1_0_ >> 24u) & 15u);
            float v1_0_7_ = static_cast<float>((q0_1_0_ >> 28u) & 15u);
            float v1_1_0_ = static_cast<float>((q1_1_0_ >> 0u) & 15u);
            float v1_1_1_ = static_cast<float>((q1_1_0_ >> 4u) & 15u);
            float v1_1_2_ = static_cast<float>((q1_1_0_ >> 8u) & 15u);
            float v1_1_3_ = static_cast<float>((q1_1_0_ >> 12u) & 15u);
            float v1_1_4_ = static_cast<float>((q1_1_0_ >> 16u) & 15u);
            float v1_1_5_ = static_cast<float>((q1_1_0_ >> 20u) & 15u);
            float v1_1_6_ = static_cast<float>((q1_1_0_ >> 24u) & 15u);
            float v1_1_7_ = static_cast<float>((q1_1_0_ >> 28u) & 15u);
            metal::float4 i0_2_ = x[((0u + column) >> 2u) + 2u];
            metal::float4 i0_3_ = x[((0u + column) >> 2u) + 3u];
            float _e384 = all0_;
            all0_ = _e384 + i0_2_.x;
            float _e387 = all0_;
            all0_ = _e387 + i0_2_.y;
            float _e390 = all0_;
            all0_ = _e390 + i0_2_.z;
            float _e393 = all0_;
            all0_ = _e393 + i0_2_.w;
            float _e396 = all0_;
            all0_ = _e396 + i0_3_.x;
            float _e399 = all0_;
            all0_ = _e399 + i0_3_.y;
            float _e402 = all0_;
            all0_ = _e402 + i0_3_.z;
            float _e405 = all0_;
            all0_ = _e405 + i0_3_.w;
            float _e409 = dot0_;
            dot0_ = metal::fma(v1_0_0_, i0_2_.x, _e409);
            float _e412 = dot0_;
            dot0_ = metal::fma(v1_0_1_, i0_2_.y, _e412);
            float _e415 = dot0_;
            dot0_ = metal::fma(v1_0_2_, i0_2_.z, _e415);
            float _e418 = dot0_;
            dot0_ = metal::fma(v1_0_3_, i0_2_.w, _e418);
            float _e421 = dot0_;
            dot0_ = metal::fma(v1_0_4_, i0_3_.x, _e421);
            float _e424 = dot0_;
            dot0_ = metal::fma(v1_0_5_, i0_3_.y, _e424);
            float _e427 = dot0_;
            dot0_ = metal::fma(v1_0_6_, i0_3_.z, _e427);
            float _e430 = dot0_;
            dot0_ = metal::fma(v1_0_7_, i0_3_.w, _e430);
            float _e433 = dot1_;
            dot1_ = metal::fma(v1_1_0_, i0_2_.x, _e433);
            float _e436 = dot1_;
            dot1_ = metal::fma(v1_1_1_, i0_2_.y, _e436);
            float _e439 = dot1_;
            dot1_ = metal::fma(v1_1_2_, i0_2_.z, _e439);
            float _e442 = dot1_;
            dot1_ = metal::fma(v1_1_3_, i0_2_.w, _e442);
            float _e445 = dot1_;
            dot1_ = metal::fma(v1_1_4_, i0_3_.x, _e445);
            float _e448 = dot1_;
            dot1_ = metal::fma(v1_1_5_, i0_3_.y, _e448);
            float _e451 = dot1_;
            dot1_ = metal::fma(v1_1_6_, i0_3_.z, _e451);
            float _e454 = dot1_;
            dot1_ = metal::fma(v1_1_7_, i0_3_.w, _e454);
            float v2_0_0_ = static_cast<float>((q0_2_0_ >> 0u) & 15u);
            float v2_0_1_ = static_cast<float>((q0_2_0_ >> 4u) & 15u);
            float v2_0_2_ = static_cast<float>((q0_2_0_ >> 8u) & 15u);
            float v2_0_3_ = static_cast<float>((q0_2_0_ >> 12u) & 15u);
            float v2_0_4_ = static_cast<float>((q0_2_0_ >> 16u) & 15u);
            float v2_0_5_ = static_cast<float>((q0_2_0_ >> 20u) & 15u);
            float v2_0_6_ = static_cast<float>((q0_2_0_ >> 24u) & 15u);
            float v2_0_7_ = static_cast<float>((q0_2_0_ >> 28u) & 15u);
            float v2_1_0_ = static_cast<float>((q1_2_0_ >> 0u) & 15u);
            float v2_1_1_ = static_cast<float>((q1_2_0_ >> 4u) & 15u);
            float v2_1_2_ = static_cast<float>((q1_2_0_ >> 8u) & 15u);
            float v2_1_3_ = static_cast<float>((q1_2_0_ >> 12u) & 15u);
            float v2_1_4_ = static_cast<float>((q1_2_0_ >> 16u) & 15u);
            float v2_1_5_ = static_cast<float>((q1_2_0_ >> 20u) & 15u);
            float v2_1_6_ = static_cast<float>((q1_2_0_ >> 24u) & 15u);
            float v2_1_7_ = static_cast<float>((q1_2_0_ >> 28u) & 15u);
            metal::float4 i0_4_ = x[((0u + column) >> 2u) + 4u];
            metal::float4 i0_5_ = x[((0u + column) >> 2u) + 5u];
            float _e552 = all0_;
            all0_ = _e552 + i0_4_.x;
            float _e555 = all0_;
            all0_ = _e555 + i0_4_.y;
            float _e558 = all0_;
            all0_ = _e558 + i0_4_.z;
            float _e561 = all0_;
            all0_ = _e561 + i0_4_.w;
            float _e564 = all0_;
            all0_ = _e564 + i0_5_.x;
            float _e567 = all0_;
            all0_ = _e567 + i0_5_.y;
            float _e570 = all0_;
            all0_ = _e570 + i0_5_.z;
            float _e573 = all0_;
            all0_ = _e573 + i0_5_.w;
            float _e577 = dot0_;
            dot0_ = metal::fma(v2_0_0_, i0_4_.x, _e577);
            float _e580 = dot0_;
            dot0_ = metal::fma(v2_0_1_, i0_4_.y, _e580);
            float _e583 = dot0_;
            dot0_ = metal::fma(v2_0_2_, i0_4_.z, _e583);
            float _e586 = dot0_;
            dot0_ = metal::fma(v2_0_3_, i0_4_.w, _e586);
            float _e589 = dot0_;
            dot0_ = metal::fma(v2_0_4_, i0_5_.x, _e589);
            float _e592 = dot0_;
            dot0_ = metal::fma(v2_0_5_, i0_5_.y, _e592);
            float _e595 = dot0_;
            dot0_ = metal::fma(v2_0_6_, i0_5_.z, _e595);
            float _e598 = dot0_;
            dot0_ = metal::fma(v2_0_7_, i0_5_.w, _e598);
            float _e601 = dot1_;
            dot1_ = metal::fma(v2_1_0_, i0_4_.x, _e601);
            float _e604 = dot1_;
            dot1_ = metal::fma(v2_1_1_, i0_4_.y, _e604);
            float _e607 = dot1_;
            dot1_ = metal::fma(v2_1_2_, i0_4_.z, _e607);
            float _e610 = dot1_;
            dot1_ = metal::fma(v2_1_3_, i0_4_.w, _e610);
            float _e613 = dot1_;
            dot1_ = metal::fma(v2_1_4_, i0_5_.x, _e613);
            float _e616 = dot1_;
            dot1_ = metal::fma(v2_1_5_, i0_5_.y, _e616);
            float _e619 = dot1_;
            dot1_ = metal::fma(v2_1_6_, i0_5_.z, _e619);
            float _e622 = dot1_;
            dot1_ = metal::fma(v2_1_7_, i0_5_.w, _e622);
            float v3_0_0_ = static_cast<float>((q0_3_0_ >> 0u) & 15u);
            float v3_0_1_ = static_cast<float>((q0_3_0_ >> 4u) & 15u);
            float v3_0_2_ = static_cast<float>((q0_3_0_ >> 8u) & 15u);
            float v3_0_3_ = static_cast<float>((q0_3_0_ >> 12u) & 15u);
            float v3_0_4_ = static_cast<float>((q0_3_0_ >> 16u) & 15u);
            float v3_0_5_ = static_cast<float>((q0_3_0_ >> 20u) & 15u);
            float v3_0_6_ = static_cast<float>((q0_3_0_ >> 24u) & 15u);
            float v3_0_7_ = static_cast<float>((q0_3_0_ >> 28u) & 15u);
            float v3_1_0_ = static_cast<float>((q1_3_0_ >> 0u) & 15u);
            float v3_1_1_ = static_cast<float>((q1_3_0_ >> 4u) & 15u);
            float v3_1_2_ = static_cast<float>((q1_3_0_ >> 8u) & 15u);
            float v3_1_3_ = static_cast<float>((q1_3_0_ >> 12u) & 15u);
            float v3_1_4_ = static_cast<float>((q1_3_0_ >> 16u) & 15u);
            float v3_1_5_ = static_cast<float>((q1_3_0_ >> 20u) & 15u);
            float v3_1_6_ = static_cast<float>((q1_3_0_ >> 24u) & 15u);
            float v3_1_7_ = static_cast<float>((q1_3_0_ >> 28u) & 15u);
            metal::float4 i0_6_ = x[((0u + column) >> 2u) + 6u];
            metal::float4 i0_7_ = x[((0u + column) >> 2u) + 7u];
            float _e720 = all0_;
            all0_ = _e720 + i0_6_.x;
            float _e723 = all0_;
            all0_ = _e723 + i0_6_.y;
            float _e726 = all0_;
            all0_ = _e726 + i0_6_.z;
            float _e729 = all0_;
            all0_ = _e729 + i0_6_.w;
            float _e732 = all0_;
            all0_ = _e732 + i0_7_.x;
            float _e735 = all0_;
            all0_ = _e735 + i0_7_.y;
            float _e738 = all0_;
            all0_ = _e738 + i0_7_.z;
            float _e741 = all0_;
            all0_ = _e741 + i0_7_.w;
            float _e745 = dot0_;
            dot0_ = metal::fma(v3_0_0_, i0_6_.x, _e745);
            float _e748 = dot0_;
            dot0_ = metal::fma(v3_0_1_, i0_6_.y, _e748);
            float _e751 = dot0_;
            dot0_ = metal::fma(v3_0_2_, i0_6_.z, _e751);
            float _e754 = dot0_;
            dot0_ = metal::fma(v3_0_3_, i0_6_.w, _e754);
            float _e757 = dot0_;
            dot0_ = metal::fma(v3_0_4_, i0_7_.x, _e757);
            float _e760 = dot0_;
            dot0_ = metal::fma(v3_0_5_, i0_7_.y, _e760);
            float _e763 = dot0_;
            dot0_ = metal::fma(v3_0_6_, i0_7_.z, _e763);
            float _e766 = dot0_;
            dot0_ = metal::fma(v3_0_7_, i0_7_.w, _e766);
            float _e769 = dot1_;
            dot1_ = metal::fma(v3_1_0_, i0_6_.x, _e769);
            float _e772 = dot1_;
            dot1_ = metal::fma(v3_1_1_, i0_6_.y, _e772);
            float _e775 = dot1_;
            dot1_ = metal::fma(v3_1_2_, i0_6_.z, _e775);
            float _e778 = dot1_;
            dot1_ = metal::fma(v3_1_3_, i0_6_.w, _e778);
            float _e781 = dot1_;
            dot1_ = metal::fma(v3_1_4_, i0_7_.x, _e781);
            float _e784 = dot1_;
            dot1_ = metal::fma(v3_1_5_, i0_7_.y, _e784);
            float _e787 = dot1_;
            dot1_ = metal::fma(v3_1_6_, i0_7_.z, _e787);
            float _e790 = dot1_;
            dot1_ = metal::fma(v3_1_7_, i0_7_.w, _e790);
            float _e792 = dot0_;
            float _e793 = all0_;
            float _e794 = acc0_;
            acc0_ = metal::fma(_e86, _e792, metal::fma(_e92, _e793, _e794));
            float _e797 = dot1_;
            float _e798 = all0_;
            float _e799 = acc1_;
            acc1_ = metal::fma(_e114, _e797, metal::fma(_e120, _e798, _e799));
        }
    }
    float _e814 = acc0_;
    red.inner[(((team * 2u) + 0u) * 32u) + lane] = _e814;
    float _e824 = acc1_;
    red.inner[(((team * 2u) + 1u) * 32u) + lane] = _e824;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e850 = red.inner[at];
        float _e855 = red.inner[at + 1u];
        float _e861 = red.inner[at + 2u];
        float _e866 = red.inner[at + 3u];
        float _e873 = red.inner[at + 4u];
        float _e878 = red.inner[at + 5u];
        float _e884 = red.inner[at + 6u];
        float _e889 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e850 + _e855) + (_e861 + _e866)) + ((_e873 + _e878) + (_e884 + _e889));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_1 = ((team * 2u) + lane) * 4u;
        float _e902 = part.inner[at_1];
        float _e907 = part.inner[at_1 + 1u];
        float _e913 = part.inner[at_1 + 2u];
        float _e918 = part.inner[at_1 + 3u];
        float sum = (_e902 + _e907) + (_e913 + _e918);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        fin.inner[(team * 8u) + lane] = sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint n_1 = 0u + lane;
        uint r_1 = n_1 % 2u;
        uint t_1 = n_1 / 2u;
        float up = fin.inner[metal::min(((team * 8u) + lane) + 1u, 63u)];
        float gate = fin.inner[(team * 8u) + lane];
        if (r_1 < 1u) {
            uint _e963 = p.rows;
            local = (first + r_1) < _e963;
        } else {
            local = false;
        }
        bool _e966 = local;
        if (_e966) {
            y[first + r_1] = (gate / (1.0 + metal::exp(-(gate)))) * up;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}
