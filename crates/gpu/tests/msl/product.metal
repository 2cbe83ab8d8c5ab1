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
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_7& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
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
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint first = ((wid.x * 8u) + team) * 4u;
    uint _e14 = p.columns;
    uint units = _e14 / 8u;
    uint _e21 = p.rows;
    uint row0_ = metal::min(first + 0u, _e21 - 1u);
    uint _e27 = p.row_words;
    uint w0_ = row0_ * _e27;
    uint _e31 = p.row_groups;
    uint s0_ = row0_ * _e31;
    uint _e37 = p.rows;
    uint row1_ = metal::min(first + 1u, _e37 - 1u);
    uint _e43 = p.row_words;
    uint w1_ = row1_ * _e43;
    uint _e47 = p.row_groups;
    uint s1_ = row1_ * _e47;
    uint _e53 = p.rows;
    uint row2_ = metal::min(first + 2u, _e53 - 1u);
    uint _e59 = p.row_words;
    uint w2_ = row2_ * _e59;
    uint _e63 = p.row_groups;
    uint s2_ = row2_ * _e63;
    uint _e69 = p.rows;
    uint row3_ = metal::min(first + 3u, _e69 - 1u);
    uint _e75 = p.row_words;
    uint w3_ = row3_ * _e75;
    uint _e79 = p.row_groups;
    uint s3_ = row3_ * _e79;
    uint _e88 = p.tokens;
    uint _e94 = p.columns;
    uint x0_ = metal::min((wid.y * 1u) + 0u, _e88 - 1u) * _e94;
    unit = lane;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e521 = unit;
            unit = _e521 + 32u;
        }
        loop_init = false;
        uint _e105 = unit;
        if (_e105 < units) {
        } else {
            break;
        }
        {
            uint _e107 = unit;
            uint column = _e107 * 8u;
            uint _e111 = unit;
            uint q0_0_ = w[(w0_ + (_e111 * 1u)) + 0u];
            float v0_0_ = static_cast<float>((q0_0_ >> 0u) & 15u);
            float v0_1_ = static_cast<float>((q0_0_ >> 4u) & 15u);
            float v0_2_ = static_cast<float>((q0_0_ >> 8u) & 15u);
            float v0_3_ = static_cast<float>((q0_0_ >> 12u) & 15u);
            float v0_4_ = static_cast<float>((q0_0_ >> 16u) & 15u);
            float v0_5_ = static_cast<float>((q0_0_ >> 20u) & 15u);
            float v0_6_ = static_cast<float>((q0_0_ >> 24u) & 15u);
            float v0_7_ = static_cast<float>((q0_0_ >> 28u) & 15u);
            uint g0_ = s0_ + (column / 64u);
            uint _e166 = scales[g0_ >> 1u];
            float _e167 = number(_e166, g0_);
            uint _e172 = biases[g0_ >> 1u];
            float _e173 = number(_e172, g0_);
            uint _e175 = unit;
            uint q1_0_ = w[(w1_ + (_e175 * 1u)) + 0u];
            float v1_0_ = static_cast<float>((q1_0_ >> 0u) & 15u);
            float v1_1_ = static_cast<float>((q1_0_ >> 4u) & 15u);
            float v1_2_ = static_cast<float>((q1_0_ >> 8u) & 15u);
            float v1_3_ = static_cast<float>((q1_0_ >> 12u) & 15u);
            float v1_4_ = static_cast<float>((q1_0_ >> 16u) & 15u);
            float v1_5_ = static_cast<float>((q1_0_ >> 20u) & 15u);
            float v1_6_ = static_cast<float>((q1_0_ >> 24u) & 15u);
            float v1_7_ = static_cast<float>((q1_0_ >> 28u) & 15u);
            uint g1_ = s1_ + (column / 64u);
            uint _e230 = scales[g1_ >> 1u];
            float _e231 = number(_e230, g1_);
            uint _e236 = biases[g1_ >> 1u];
            float _e237 = number(_e236, g1_);
            uint _e239 = unit;
            uint q2_0_ = w[(w2_ + (_e239 * 1u)) + 0u];
            float v2_0_ = static_cast<float>((q2_0_ >> 0u) & 15u);
            float v2_1_ = static_cast<float>((q2_0_ >> 4u) & 15u);
            float v2_2_ = static_cast<float>((q2_0_ >> 8u) & 15u);
            float v2_3_ = static_cast<float>((q2_0_ >> 12u) & 15u);
            float v2_4_ = static_cast<float>((q2_0_ >> 16u) & 15u);
            float v2_5_ = static_cast<float>((q2_0_ >> 20u) & 15u);
            float v2_6_ = static_cast<float>((q2_0_ >> 24u) & 15u);
            float v2_7_ = static_cast<float>((q2_0_ >> 28u) & 15u);
            uint g2_ = s2_ + (column / 64u);
            uint _e294 = scales[g2_ >> 1u];
            float _e295 = number(_e294, g2_);
            uint _e300 = biases[g2_ >> 1u];
            float _e301 = number(_e300, g2_);
            uint _e303 = unit;
            uint q3_0_ = w[(w3_ + (_e303 * 1u)) + 0u];
            float v3_0_ = static_cast<float>((q3_0_ >> 0u) & 15u);
            float v3_1_ = static_cast<float>((q3_0_ >> 4u) & 15u);
            float v3_2_ = static_cast<float>((q3_0_ >> 8u) & 15u);
            float v3_3_ = static_cast<float>((q3_0_ >> 12u) & 15u);
            float v3_4_ = static_cast<float>((q3_0_ >> 16u) & 15u);
            float v3_5_ = static_cast<float>((q3_0_ >> 20u) & 15u);
            float v3_6_ = static_cast<float>((q3_0_ >> 24u) & 15u);
            float v3_7_ = static_cast<float>((q3_0_ >> 28u) & 15u);
            uint g3_ = s3_ + (column / 64u);
            uint _e358 = scales[g3_ >> 1u];
            float _e359 = number(_e358, g3_);
            uint _e364 = biases[g3_ >> 1u];
            float _e365 = number(_e364, g3_);
            {
                metal::float4 i0_ = x[((x0_ + column) >> 2u) + 0u];
                metal::float4 i1_ = x[((x0_ + column) >> 2u) + 1u];
                all = i0_.x;
                float _e384 = all;
                all = _e384 + i0_.y;
                float _e387 = all;
                all = _e387 + i0_.z;
                float _e390 = all;
                all = _e390 + i0_.w;
                float _e393 = all;
                all = _e393 + i1_.x;
                float _e396 = all;
                all = _e396 + i1_.y;
                float _e399 = all;
                all = _e399 + i1_.z;
                float _e402 = all;
                all = _e402 + i1_.w;
                dot0_ = v0_0_ * i0_.x;
                float _e409 = dot0_;
                dot0_ = metal::fma(v0_1_, i0_.y, _e409);
                float _e412 = dot0_;
                dot0_ = metal::fma(v0_2_, i0_.z, _e412);
                float _e415 = dot0_;
                dot0_ = metal::fma(v0_3_, i0_.w, _e415);
                float _e418 = dot0_;
                dot0_ = metal::fma(v0_4_, i1_.x, _e418);
                float _e421 = dot0_;
                dot0_ = metal::fma(v0_5_, i1_.y, _e421);
                float _e424 = dot0_;
                dot0_ = metal::fma(v0_6_, i1_.z, _e424);
                float _e427 = dot0_;
                dot0_ = metal::fma(v0_7_, i1_.w, _e427);
                float _e429 = dot0_;
                float _e430 = all;
                float _e431 = acc0_;
                acc0_ = metal::fma(_e167, _e429, metal::fma(_e173, _e430, _e431));
                dot1_ = v1_0_ * i0_.x;
                float _e438 = dot1_;
                dot1_ = metal::fma(v1_1_, i0_.y, _e438);
                float _e441 = dot1_;
                dot1_ = metal::fma(v1_2_, i0_.z, _e441);
                float _e444 = dot1_;
                dot1_ = metal::fma(v1_3_, i0_.w, _e444);
                float _e447 = dot1_;
                dot1_ = metal::fma(v1_4_, i1_.x, _e447);
                float _e450 = dot1_;
                dot1_ = metal::fma(v1_5_, i1_.y, _e450);
                float _e453 = dot1_;
                dot1_ = metal::fma(v1_6_, i1_.z, _e453);
                float _e456 = dot1_;
                dot1_ = metal::fma(v1_7_, i1_.w, _e456);
                float _e458 = dot1_;
                float _e459 = all;
                float _e460 = acc1_;
                acc1_ = metal::fma(_e231, _e458, metal::fma(_e237, _e459, _e460));
                dot2_ = v2_0_ * i0_.x;
                float _e467 = dot2_;
                dot2_ = metal::fma(v2_1_, i0_.y, _e467);
                float _e470 = dot2_;
                dot2_ = metal::fma(v2_2_, i0_.z, _e470);
                float _e473 = dot2_;
                dot2_ = metal::fma(v2_3_, i0_.w, _e473);
                float _e476 = dot2_;
                dot2_ = metal::fma(v2_4_, i1_.x, _e476);
                float _e479 = dot2_;
                dot2_ = metal::fma(v2_5_, i1_.y, _e479);
                float _e482 = dot2_;
                dot2_ = metal::fma(v2_6_, i1_.z, _e482);
                float _e485 = dot2_;
                dot2_ = metal::fma(v2_7_, i1_.w, _e485);
                float _e487 = dot2_;
                float _e488 = all;
                float _e489 = acc2_;
                acc2_ = metal::fma(_e295, _e487, metal::fma(_e301, _e488, _e489));
                dot3_ = v3_0_ * i0_.x;
                float _e496 = dot3_;
                dot3_ = metal::fma(v3_1_, i0_.y, _e496);
                float _e499 = dot3_;
                dot3_ = metal::fma(v3_2_, i0_.z, _e499);
                float _e502 = dot3_;
                dot3_ = metal::fma(v3_3_, i0_.w, _e502);
                float _e505 = dot3_;
                dot3_ = metal::fma(v3_4_, i1_.x, _e505);
                float _e508 = dot3_;
                dot3_ = metal::fma(v3_5_, i1_.y, _e508);
                float _e511 = dot3_;
                dot3_ = metal::fma(v3_6_, i1_.z, _e511);
                float _e514 = dot3_;
                dot3_ = metal::fma(v3_7_, i1_.w, _e514);
                float _e516 = dot3_;
                float _e517 = all;
                float _e518 = acc3_;
                acc3_ = metal::fma(_e359, _e516, metal::fma(_e365, _e517, _e518));
            }
        }
    }
    float _e533 = acc0_;
    red.inner[(((team * 4u) + 0u) * 32u) + lane] = _e533;
    float _e543 = acc1_;
    red.inner[(((team * 4u) + 1u) * 32u) + lane] = _e543;
    float _e553 = acc2_;
    red.inner[(((team * 4u) + 2u) * 32u) + lane] = _e553;
    float _e563 = acc3_;
    red.inner[(((team * 4u) + 3u) * 32u) + lane] = _e563;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 4u) {
        uint slot = (team * 4u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e589 = red.inner[at];
        float _e594 = red.inner[at + 1u];
        float _e600 = red.inner[at + 2u];
        float _e605 = red.inner[at + 3u];
        float _e612 = red.inner[at + 4u];
        float _e617 = red.inner[at + 5u];
        float _e623 = red.inner[at + 6u];
        float _e628 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e589 + _e594) + (_e600 + _e605)) + ((_e612 + _e617) + (_e623 + _e628));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint at_1 = ((team * 4u) + lane) * 4u;
        float _e641 = part.inner[at_1];
        float _e646 = part.inner[at_1 + 1u];
        float _e652 = part.inner[at_1 + 2u];
        float _e657 = part.inner[at_1 + 3u];
        float sum = (_e641 + _e646) + (_e652 + _e657);
        uint n = 0u + lane;
        uint r = n % 4u;
        uint t = n / 4u;
        uint row = first + r;
        uint token = (wid.y * 1u) + t;
        uint _e673 = p.rows;
        if (row < _e673) {
            uint _e679 = p.tokens;
            local = token < _e679;
        } else {
            local = false;
        }
        bool _e682 = local;
        if (_e682) {
            uint _e685 = p.rows;
            uint at_2 = (token * _e685) + row;
            y[at_2] = sum;
            return;
        } else {
            return;
        }
    } else {
        return;
    }
}
