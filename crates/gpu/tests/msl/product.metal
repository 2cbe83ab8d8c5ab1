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

typedef uint type_1[1];
typedef metal::float4 type_4[1];
typedef float type_5[1];
struct Parameters {
    uint rows;
    uint columns;
    uint tokens;
    uint row_words;
    uint row_groups;
};
struct type_6 {
    float inner[1024];
};
struct type_7 {
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
, device type_1 const& w [[buffer(1)]]
, device type_1 const& scales [[buffer(2)]]
, device type_1 const& biases [[buffer(3)]]
, device type_4 const& x [[buffer(4)]]
, device type_5& y [[buffer(5)]]
, device type_1 const& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_7& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
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
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint first = ((wid.x * 8u) + team) * 4u;
    uint _e19 = p.columns;
    uint units = _e19 / 8u;
    uint _e26 = p.rows;
    uint row0_ = metal::min(first + 0u, _e26 - 1u);
    uint _e32 = p.row_words;
    uint w0_ = row0_ * _e32;
    uint _e36 = p.row_groups;
    uint s0_ = row0_ * _e36;
    uint _e42 = p.rows;
    uint row1_ = metal::min(first + 1u, _e42 - 1u);
    uint _e48 = p.row_words;
    uint w1_ = row1_ * _e48;
    uint _e52 = p.row_groups;
    uint s1_ = row1_ * _e52;
    uint _e58 = p.rows;
    uint row2_ = metal::min(first + 2u, _e58 - 1u);
    uint _e64 = p.row_words;
    uint w2_ = row2_ * _e64;
    uint _e68 = p.row_groups;
    uint s2_ = row2_ * _e68;
    uint _e74 = p.rows;
    uint row3_ = metal::min(first + 3u, _e74 - 1u);
    uint _e80 = p.row_words;
    uint w3_ = row3_ * _e80;
    uint _e84 = p.row_groups;
    uint s3_ = row3_ * _e84;
    uint _e93 = p.tokens;
    uint _e99 = p.columns;
    uint x0_ = metal::min((wid.y * 1u) + 0u, _e93 - 1u) * _e99;
    unit = lane;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e526 = unit;
            unit = _e526 + 32u;
        }
        loop_init = false;
        uint _e110 = unit;
        if (_e110 < units) {
        } else {
            break;
        }
        {
            uint _e112 = unit;
            uint column = _e112 * 8u;
            uint _e116 = unit;
            uint q0_0_ = w[(w0_ + (_e116 * 1u)) + 0u];
            float v0_0_ = static_cast<float>((q0_0_ >> 0u) & 15u);
            float v0_1_ = static_cast<float>((q0_0_ >> 4u) & 15u);
            float v0_2_ = static_cast<float>((q0_0_ >> 8u) & 15u);
            float v0_3_ = static_cast<float>((q0_0_ >> 12u) & 15u);
            float v0_4_ = static_cast<float>((q0_0_ >> 16u) & 15u);
            float v0_5_ = static_cast<float>((q0_0_ >> 20u) & 15u);
            float v0_6_ = static_cast<float>((q0_0_ >> 24u) & 15u);
            float v0_7_ = static_cast<float>((q0_0_ >> 28u) & 15u);
            uint g0_ = s0_ + (column / 64u);
            uint _e171 = scales[g0_ >> 1u];
            float _e172 = number(_e171, g0_);
            uint _e177 = biases[g0_ >> 1u];
            float _e178 = number(_e177, g0_);
            uint _e180 = unit;
            uint q1_0_ = w[(w1_ + (_e180 * 1u)) + 0u];
            float v1_0_ = static_cast<float>((q1_0_ >> 0u) & 15u);
            float v1_1_ = static_cast<float>((q1_0_ >> 4u) & 15u);
            float v1_2_ = static_cast<float>((q1_0_ >> 8u) & 15u);
            float v1_3_ = static_cast<float>((q1_0_ >> 12u) & 15u);
            float v1_4_ = static_cast<float>((q1_0_ >> 16u) & 15u);
            float v1_5_ = static_cast<float>((q1_0_ >> 20u) & 15u);
            float v1_6_ = static_cast<float>((q1_0_ >> 24u) & 15u);
            float v1_7_ = static_cast<float>((q1_0_ >> 28u) & 15u);
            uint g1_ = s1_ + (column / 64u);
            uint _e235 = scales[g1_ >> 1u];
            float _e236 = number(_e235, g1_);
            uint _e241 = biases[g1_ >> 1u];
            float _e242 = number(_e241, g1_);
            uint _e244 = unit;
            uint q2_0_ = w[(w2_ + (_e244 * 1u)) + 0u];
            float v2_0_ = static_cast<float>((q2_0_ >> 0u) & 15u);
            float v2_1_ = static_cast<float>((q2_0_ >> 4u) & 15u);
            float v2_2_ = static_cast<float>((q2_0_ >> 8u) & 15u);
            float v2_3_ = static_cast<float>((q2_0_ >> 12u) & 15u);
            float v2_4_ = static_cast<float>((q2_0_ >> 16u) & 15u);
            float v2_5_ = static_cast<float>((q2_0_ >> 20u) & 15u);
            float v2_6_ = static_cast<float>((q2_0_ >> 24u) & 15u);
            float v2_7_ = static_cast<float>((q2_0_ >> 28u) & 15u);
            uint g2_ = s2_ + (column / 64u);
            uint _e299 = scales[g2_ >> 1u];
            float _e300 = number(_e299, g2_);
            uint _e305 = biases[g2_ >> 1u];
            float _e306 = number(_e305, g2_);
            uint _e308 = unit;
            uint q3_0_ = w[(w3_ + (_e308 * 1u)) + 0u];
            float v3_0_ = static_cast<float>((q3_0_ >> 0u) & 15u);
            float v3_1_ = static_cast<float>((q3_0_ >> 4u) & 15u);
            float v3_2_ = static_cast<float>((q3_0_ >> 8u) & 15u);
            float v3_3_ = static_cast<float>((q3_0_ >> 12u) & 15u);
            float v3_4_ = static_cast<float>((q3_0_ >> 16u) & 15u);
            float v3_5_ = static_cast<float>((q3_0_ >> 20u) & 15u);
            float v3_6_ = static_cast<float>((q3_0_ >> 24u) & 15u);
            float v3_7_ = static_cast<float>((q3_0_ >> 28u) & 15u);
            uint g3_ = s3_ + (column / 64u);
            uint _e363 = scales[g3_ >> 1u];
            float _e364 = number(_e363, g3_);
            uint _e369 = biases[g3_ >> 1u];
            float _e370 = number(_e369, g3_);
            {
                metal::float4 i0_ = x[((x0_ + column) >> 2u) + 0u];
                metal::float4 i1_ = x[((x0_ + column) >> 2u) + 1u];
                all = i0_.x;
                float _e389 = all;
                all = _e389 + i0_.y;
                float _e392 = all;
                all = _e392 + i0_.z;
                float _e395 = all;
                all = _e395 + i0_.w;
                float _e398 = all;
                all = _e398 + i1_.x;
                float _e401 = all;
                all = _e401 + i1_.y;
                float _e404 = all;
                all = _e404 + i1_.z;
                float _e407 = all;
                all = _e407 + i1_.w;
                dot0_ = v0_0_ * i0_.x;
                float _e414 = dot0_;
                dot0_ = metal::fma(v0_1_, i0_.y, _e414);
                float _e417 = dot0_;
                dot0_ = metal::fma(v0_2_, i0_.z, _e417);
                float _e420 = dot0_;
                dot0_ = metal::fma(v0_3_, i0_.w, _e420);
                float _e423 = dot0_;
                dot0_ = metal::fma(v0_4_, i1_.x, _e423);
                float _e426 = dot0_;
                dot0_ = metal::fma(v0_5_, i1_.y, _e426);
                float _e429 = dot0_;
                dot0_ = metal::fma(v0_6_, i1_.z, _e429);
                float _e432 = dot0_;
                dot0_ = metal::fma(v0_7_, i1_.w, _e432);
                float _e434 = dot0_;
                float _e435 = all;
                float _e436 = acc0_;
                acc0_ = metal::fma(_e172, _e434, metal::fma(_e178, _e435, _e436));
                dot1_ = v1_0_ * i0_.x;
                float _e443 = dot1_;
                dot1_ = metal::fma(v1_1_, i0_.y, _e443);
                float _e446 = dot1_;
                dot1_ = metal::fma(v1_2_, i0_.z, _e446);
                float _e449 = dot1_;
                dot1_ = metal::fma(v1_3_, i0_.w, _e449);
                float _e452 = dot1_;
                dot1_ = metal::fma(v1_4_, i1_.x, _e452);
                float _e455 = dot1_;
                dot1_ = metal::fma(v1_5_, i1_.y, _e455);
                float _e458 = dot1_;
                dot1_ = metal::fma(v1_6_, i1_.z, _e458);
                float _e461 = dot1_;
                dot1_ = metal::fma(v1_7_, i1_.w, _e461);
                float _e463 = dot1_;
                float _e464 = all;
                float _e465 = acc1_;
                acc1_ = metal::fma(_e236, _e463, metal::fma(_e242, _e464, _e465));
                dot2_ = v2_0_ * i0_.x;
                float _e472 = dot2_;
                dot2_ = metal::fma(v2_1_, i0_.y, _e472);
                float _e475 = dot2_;
                dot2_ = metal::fma(v2_2_, i0_.z, _e475);
                float _e478 = dot2_;
                dot2_ = metal::fma(v2_3_, i0_.w, _e478);
                float _e481 = dot2_;
                dot2_ = metal::fma(v2_4_, i1_.x, _e481);
                float _e484 = dot2_;
                dot2_ = metal::fma(v2_5_, i1_.y, _e484);
                float _e487 = dot2_;
                dot2_ = metal::fma(v2_6_, i1_.z, _e487);
                float _e490 = dot2_;
                dot2_ = metal::fma(v2_7_, i1_.w, _e490);
                float _e492 = dot2_;
                float _e493 = all;
                float _e494 = acc2_;
                acc2_ = metal::fma(_e300, _e492, metal::fma(_e306, _e493, _e494));
                dot3_ = v3_0_ * i0_.x;
                float _e501 = dot3_;
                dot3_ = metal::fma(v3_1_, i0_.y, _e501);
                float _e504 = dot3_;
                dot3_ = metal::fma(v3_2_, i0_.z, _e504);
                float _e507 = dot3_;
                dot3_ = metal::fma(v3_3_, i0_.w, _e507);
                float _e510 = dot3_;
                dot3_ = metal::fma(v3_4_, i1_.x, _e510);
                float _e513 = dot3_;
                dot3_ = metal::fma(v3_5_, i1_.y, _e513);
                float _e516 = dot3_;
                dot3_ = metal::fma(v3_6_, i1_.z, _e516);
                float _e519 = dot3_;
                dot3_ = metal::fma(v3_7_, i1_.w, _e519);
                float _e521 = dot3_;
                float _e522 = all;
                float _e523 = acc3_;
                acc3_ = metal::fma(_e364, _e521, metal::fma(_e370, _e522, _e523));
            }
        }
    }
    float _e538 = acc0_;
    red.inner[(((team * 4u) + 0u) * 32u) + lane] = _e538;
    float _e548 = acc1_;
    red.inner[(((team * 4u) + 1u) * 32u) + lane] = _e548;
    float _e558 = acc2_;
    red.inner[(((team * 4u) + 2u) * 32u) + lane] = _e558;
    float _e568 = acc3_;
    red.inner[(((team * 4u) + 3u) * 32u) + lane] = _e568;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 4u) {
        uint slot = (team * 4u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e594 = red.inner[at];
        float _e599 = red.inner[at + 1u];
        float _e605 = red.inner[at + 2u];
        float _e610 = red.inner[at + 3u];
        float _e617 = red.inner[at + 4u];
        float _e622 = red.inner[at + 5u];
        float _e628 = red.inner[at + 6u];
        float _e633 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e594 + _e599) + (_e605 + _e610)) + ((_e617 + _e622) + (_e628 + _e633));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint at_1 = ((team * 4u) + lane) * 4u;
        float _e646 = part.inner[at_1];
        float _e651 = part.inner[at_1 + 1u];
        float _e657 = part.inner[at_1 + 2u];
        float _e662 = part.inner[at_1 + 3u];
        float sum = (_e646 + _e651) + (_e657 + _e662);
        uint n = 0u + lane;
        uint r = n % 4u;
        uint t = n / 4u;
        uint row = first + r;
        uint token = (wid.y * 1u) + t;
        uint _e678 = p.rows;
        if (row < _e678) {
            uint _e684 = p.tokens;
            local = token < _e684;
        } else {
            local = false;
        }
        bool _e687 = local;
        if (_e687) {
            uint _e690 = p.rows;
            uint at_2 = (token * _e690) + row;
            y[at_2] = sum;
            return;
        } else {
            return;
        }
    } else {
        return;
    }
}
