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
    float inner[512];
};
struct type_9 {
    float inner[64];
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
    threadgroup type_8& red
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
    threadgroup type_8& red
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
, threadgroup type_8& red
, threadgroup type_9& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(13)]]
) {
    uint which = 0u;
    uint group = {};
    uint rows = {};
    bool local = {};
    float squares = 0.0;
    uint i = {};
    uint i_1 = {};
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    uint unit = {};
    float all0_ = {};
    float dot0_ = {};
    float dot1_ = {};
    uint unit_1 = {};
    float all0_1 = {};
    float dot0_1 = {};
    float dot1_1 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint _e13 = p.columns;
    uint units = _e13 / 32u;
    group = wid.x;
    uint _e22 = p.rows0_;
    rows = _e22;
    uint _e24 = which;
    if (_e24 == 0u) {
        uint _e29 = group;
        uint _e32 = p.rows0_;
        local = _e29 >= ((_e32 + 15u) / 16u);
    } else {
        local = false;
    }
    bool _e39 = local;
    if (_e39) {
        uint _e40 = group;
        uint _e43 = p.rows0_;
        group = _e40 - ((_e43 + 15u) / 16u);
        which = 1u;
        uint _e52 = p.rows1_;
        rows = _e52;
    }
    i = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e73 = i;
            i = _e73 + 256u;
        }
        loop_init = false;
        uint _e56 = i;
        uint _e59 = p.columns;
        if (_e56 < _e59) {
        } else {
            break;
        }
        {
            uint _e62 = i;
            uint _e66 = i;
            float value = x[_e62 >> 2u][_e66 & 3u];
            float _e71 = squares;
            squares = metal::fma(value, value, _e71);
        }
    }
    float _e78 = squares;
    red.inner[lid] = _e78;
    float _e79 = tree_sum(lid, red);
    uint _e82 = p.columns;
    uint _e87 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e79 / static_cast<float>(_e82)) + as_type<float>(_e87));
    if (wid.x == 0u) {
        i_1 = lid;
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e118 = i_1;
                i_1 = _e118 + 256u;
            }
            loop_init_1 = false;
            uint _e98 = i_1;
            uint _e101 = p.columns;
            if (_e98 < (_e101 >> 2u)) {
            } else {
                break;
            }
            {
                uint _e106 = i_1;
                uint _e109 = i_1;
                metal::float4 _e111 = x[_e109];
                uint _e114 = i_1;
                metal::float4 _e116 = weight[_e114];
                normed[_e106] = (_e111 * factor) * _e116;
            }
        }
    }
    uint _e121 = group;
    uint first_1 = ((_e121 * 8u) + team) * 2u;
    uint _e129 = rows;
    uint row0_ = metal::min(first_1 + 0u, _e129 - 1u);
    uint _e135 = rows;
    uint row1_ = metal::min(first_1 + 1u, _e135 - 1u);
    uint _e141 = p.row_words;
    uint w0_1 = row0_ * _e141;
    uint _e145 = p.row_groups;
    uint s0_ = row0_ * _e145;
    uint _e149 = p.row_words;
    uint w1_1 = row1_ * _e149;
    uint _e153 = p.row_groups;
    uint s1_ = row1_ * _e153;
    uint _e159 = which;
    switch(_e159) {
        case 1u: {
            unit = lane;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e967 = unit;
                    unit = _e967 + 32u;
                }
                loop_init_2 = false;
                uint _e161 = unit;
                if (_e161 < units) {
                } else {
                    break;
                }
                {
                    uint _e163 = unit;
                    uint column = _e163 * 32u;
                    uint _e167 = unit;
                    metal::uint4 u0_ = w1_[(w0_1 + (_e167 * 4u)) / 4u];
                    uint q0_0_0_ = u0_.x;
                    uint q0_1_0_ = u0_.y;
                    uint q0_2_0_ = u0_.z;
                    uint q0_3_0_ = u0_.w;
                    uint g0_ = s0_ + (column / 64u);
                    uint _e186 = scales1_[g0_ >> 1u];
                    float _e187 = number(_e186, g0_);
                    uint _e192 = biases1_[g0_ >> 1u];
                    float _e193 = number(_e192, g0_);
                    uint _e195 = unit;
                    metal::uint4 u1_ = w1_[(w1_1 + (_e195 * 4u)) / 4u];
                    uint q1_0_0_ = u1_.x;
                    uint q1_1_0_ = u1_.y;
                    uint q1_2_0_ = u1_.z;
                    uint q1_3_0_ = u1_.w;
                    uint g1_ = s1_ + (column / 64u);
                    uint _e214 = scales1_[g1_ >> 1u];
                    float _e215 = number(_e214, g1_);
                    uint _e220 = biases1_[g1_ >> 1u];
                    float _e221 = number(_e220, g1_);
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
                    metal::float4 _e308 = x[(column >> 2u) + 0u];
                    metal::float4 _e316 = weight[(column >> 2u) + 0u];
                    metal::float4 i0_0_ = (_e308 * factor) * _e316;
                    metal::float4 _e324 = x[(column >> 2u) + 1u];
                    metal::float4 _e332 = weight[(column >> 2u) + 1u];
                    metal::float4 i0_1_ = (_e324 * factor) * _e332;
                    all0_ = i0_0_.x;
                    float _e336 = all0_;
                    all0_ = _e336 + i0_0_.y;
                    float _e339 = all0_;
                    all0_ = _e339 + i0_0_.z;
                    float _e342 = all0_;
                    all0_ = _e342 + i0_0_.w;
                    float _e345 = all0_;
                    all0_ = _e345 + i0_1_.x;
                    float _e348 = all0_;
                    all0_ = _e348 + i0_1_.y;
                    float _e351 = all0_;
                    all0_ = _e351 + i0_1_.z;
                    float _e354 = all0_;
                    all0_ = _e354 + i0_1_.w;
                    dot0_ = v0_0_0_ * i0_0_.x;
                    float _e361 = dot0_;
                    dot0_ = metal::fma(v0_0_1_, i0_0_.y, _e361);
                    float _e364 = dot0_;
                    dot0_ = metal::fma(v0_0_2_, i0_0_.z, _e364);
                    float _e367 = dot0_;
                    dot0_ = metal::fma(v0_0_3_, i0_0_.w, _e367);
                    float _e370 = dot0_;
                    dot0_ = metal::fma(v0_0_4_, i0_1_.x, _e370);
                    float _e373 = dot0_;
                    dot0_ = metal::fma(v0_0_5_, i0_1_.y, _e373);
                    float _e376 = dot0_;
                    dot0_ = metal::fma(v0_0_6_, i0_1_.z, _e376);
                    float _e379 = dot0_;
                    dot0_ = metal::fma(v0_0_7_, i0_1_.w, _e379);
                    dot1_ = v0_1_0_ * i0_0_.x;
                    float _e385 = dot1_;
                    dot1_ = metal::fma(v0_1_1_, i0_0_.y, _e385);
                    float _e388 = dot1_;
                    dot1_ = metal::fma(v0_1_2_, i0_0_.z, _e388);
                    float _e391 = dot1_;
                    dot1_ = metal::fma(v0_1_3_, i0_0_.w, _e391);
                    float _e394 = dot1_;
                    dot1_ = metal::fma(v0_1_4_, i0_1_.x, _e394);
                    float _e397 = dot1_;
                    dot1_ = metal::fma(v0_1_5_, i0_1_.y, _e397);
                    float _e400 = dot1_;
                    dot1_ = metal::fma(v0_1_6_, i0_1_.z, _e400);
                    float _e403 = dot1_;
                    dot1_ = metal::fma(v0_1_7_, i0_1_.w, _e403);
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
                    metal::float4 _e491 = x[(column >> 2u) + 2u];
                    metal::float4 _e499 = weight[(column >> 2u) + 2u];
                    metal::float4 i0_2_ = (_e491 * factor) * _e499;
                    metal::float4 _e507 = x[(column >> 2u) + 3u];
                    metal::float4 _e515 = weight[(column >> 2u) + 3u];
                    metal::float4 i0_3_ = (_e507 * factor) * _e515;
                    float _e517 = all0_;
                    all0_ = _e517 + i0_2_.x;
                    float _e520 = all0_;
                    all0_ = _e520 + i0_2_.y;
                    float _e523 = all0_;
                    all0_ = _e523 + i0_2_.z;
                    float _e526 = all0_;
                    all0_ = _e526 + i0_2_.w;
                    float _e529 = all0_;
                    all0_ = _e529 + i0_3_.x;
                    float _e532 = all0_;
                    all0_ = _e532 + i0_3_.y;
                    float _e535 = all0_;
                    all0_ = _e535 + i0_3_.z;
                    float _e538 = all0_;
                    all0_ = _e538 + i0_3_.w;
                    float _e542 = dot0_;
                    dot0_ = metal::fma(v1_0_0_, i0_2_.x, _e542);
                    float _e545 = dot0_;
                    dot0_ = metal::fma(v1_0_1_, i0_2_.y, _e545);
                    float _e548 = dot0_;
                    dot0_ = metal::fma(v1_0_2_, i0_2_.z, _e548);
                    float _e551 = dot0_;
                    dot0_ = metal::fma(v1_0_3_, i0_2_.w, _e551);
                    float _e554 = dot0_;
                    dot0_ = metal::fma(v1_0_4_, i0_3_.x, _e554);
                    float _e557 = dot0_;
                    dot0_ = metal::fma(v1_0_5_, i0_3_.y, _e557);
                    float _e560 = dot0_;
                    dot0_ = metal::fma(v1_0_6_, i0_3_.z, _e560);
                    float _e563 = dot0_;
                    dot0_ = metal::fma(v1_0_7_, i0_3_.w, _e563);
                    float _e566 = dot1_;
                    dot1_ = metal::fma(v1_1_0_, i0_2_.x, _e566);
                    float _e569 = dot1_;
                    dot1_ = metal::fma(v1_1_1_, i0_2_.y, _e569);
                    float _e572 = dot1_;
                    dot1_ = metal::fma(v1_1_2_, i0_2_.z, _e572);
                    float _e575 = dot1_;
                    dot1_ = metal::fma(v1_1_3_, i0_2_.w, _e575);
                    float _e578 = dot1_;
                    dot1_ = metal::fma(v1_1_4_, i0_3_.x, _e578);
                    float _e581 = dot1_;
                    dot1_ = metal::fma(v1_1_5_, i0_3_.y, _e581);
                    float _e584 = dot1_;
                    dot1_ = metal::fma(v1_1_6_, i0_3_.z, _e584);
                    float _e587 = dot1_;
                    dot1_ = metal::fma(v1_1_7_, i0_3_.w, _e587);
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
                    metal::float4 _e675 = x[(column >> 2u) + 4u];
                    metal::float4 _e683 = weight[(column >> 2u) + 4u];
                    metal::float4 i0_4_ = (_e675 * factor) * _e683;
                    metal::float4 _e691 = x[(column >> 2u) + 5u];
                    metal::float4 _e699 = weight[(column >> 2u) + 5u];
                    metal::float4 i0_5_ = (_e691 * factor) * _e699;
                    float _e701 = all0_;
                    all0_ = _e701 + i0_4_.x;
                    float _e704 = all0_;
                    all0_ = _e704 + i0_4_.y;
                    float _e707 = all0_;
                    all0_ = _e707 + i0_4_.z;
                    float _e710 = all0_;
                    all0_ = _e710 + i0_4_.w;
                    float _e713 = all0_;
                    all0_ = _e713 + i0_5_.x;
                    float _e716 = all0_;
                    all0_ = _e716 + i0_5_.y;
                    float _e719 = all0_;
                    all0_ = _e719 + i0_5_.z;
                    float _e722 = all0_;
                    all0_ = _e722 + i0_5_.w;
                    float _e726 = dot0_;
                    dot0_ = metal::fma(v2_0_0_, i0_4_.x, _e726);
                    float _e729 = dot0_;
                    dot0_ = metal::fma(v2_0_1_, i0_4_.y, _e729);
                    float _e732 = dot0_;
                    dot0_ = metal::fma(v2_0_2_, i0_4_.z, _e732);
                    float _e735 = dot0_;
                    dot0_ = metal::fma(v2_0_3_, i0_4_.w, _e735);
                    float _e738 = dot0_;
                    dot0_ = metal::fma(v2_0_4_, i0_5_.x, _e738);
                    float _e741 = dot0_;
                    dot0_ = metal::fma(v2_0_5_, i0_5_.y, _e741);
                    float _e744 = dot0_;
                    dot0_ = metal::fma(v2_0_6_, i0_5_.z, _e744);
                    float _e747 = dot0_;
                    dot0_ = metal::fma(v2_0_7_, i0_5_.w, _e747);
                    float _e750 = dot1_;
                    dot1_ = metal::fma(v2_1_0_, i0_4_.x, _e750);
                    float _e753 = dot1_;
                    dot1_ = metal::fma(v2_1_1_, i0_4_.y, _e753);
                    float _e756 = dot1_;
                    dot1_ = metal::fma(v2_1_2_, i0_4_.z, _e756);
                    float _e759 = dot1_;
                    dot1_ = metal::fma(v2_1_3_, i0_4_.w, _e759);
                    float _e762 = dot1_;
                    dot1_ = metal::fma(v2_1_4_, i0_5_.x, _e762);
                    float _e765 = dot1_;
                    dot1_ = metal::fma(v2_1_5_, i0_5_.y, _e765);
                    float _e768 = dot1_;
                    dot1_ = metal::fma(v2_1_6_, i0_5_.z, _e768);
                    float _e771 = dot1_;
                    dot1_ = metal::fma(v2_1_7_, i0_5_.w, _e771);
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
                    metal::float4 _e859 = x[(column >> 2u) + 6u];
                    metal::float4 _e867 = weight[(column >> 2u) + 6u];
                    metal::float4 i0_6_ = (_e859 * factor) * _e867;
                    metal::float4 _e875 = x[(column >> 2u) + 7u];
                    metal::float4 _e883 = weight[(column >> 2u) + 7u];
                    metal::float4 i0_7_ = (_e875 * factor) * _e883;
                    float _e885 = all0_;
                    all0_ = _e885 + i0_6_.x;
                    float _e888 = all0_;
                    all0_ = _e888 + i0_6_.y;
                    float _e891 = all0_;
                    all0_ = _e891 + i0_6_.z;
                    float _e894 = all0_;
                    all0_ = _e894 + i0_6_.w;
                    float _e897 = all0_;
                    all0_ = _e897 + i0_7_.x;
                    float _e900 = all0_;
                    all0_ = _e900 + i0_7_.y;
                    float _e903 = all0_;
                    all0_ = _e903 + i0_7_.z;
                    float _e906 = all0_;
                    all0_ = _e906 + i0_7_.w;
                    float _e910 = dot0_;
                    dot0_ = metal::fma(v3_0_0_, i0_6_.x, _e910);
                    float _e913 = dot0_;
                    dot0_ = metal::fma(v3_0_1_, i0_6_.y, _e913);
                    float _e916 = dot0_;
                    dot0_ = metal::fma(v3_0_2_, i0_6_.z, _e916);
                    float _e919 = dot0_;
                    dot0_ = metal::fma(v3_0_3_, i0_6_.w, _e919);
                    float _e922 = dot0_;
                    dot0_ = metal::fma(v3_0_4_, i0_7_.x, _e922);
                    float _e925 = dot0_;
                    dot0_ = metal::fma(v3_0_5_, i0_7_.y, _e925);
                    float _e928 = dot0_;
                    dot0_ = metal::fma(v3_0_6_, i0_7_.z, _e928);
                    float _e931 = dot0_;
                    dot0_ = metal::fma(v3_0_7_, i0_7_.w, _e931);
                    float _e934 = dot1_;
                    dot1_ = metal::fma(v3_1_0_, i0_6_.x, _e934);
                    float _e937 = dot1_;
                    dot1_ = metal::fma(v3_1_1_, i0_6_.y, _e937);
                    float _e940 = dot1_;
                    dot1_ = metal::fma(v3_1_2_, i0_6_.z, _e940);
                    float _e943 = dot1_;
                    dot1_ = metal::fma(v3_1_3_, i0_6_.w, _e943);
                    float _e946 = dot1_;
                    dot1_ = metal::fma(v3_1_4_, i0_7_.x, _e946);
                    float _e949 = dot1_;
                    dot1_ = metal::fma(v3_1_5_, i0_7_.y, _e949);
                    float _e952 = dot1_;
                    dot1_ = metal::fma(v3_1_6_, i0_7_.z, _e952);
                    float _e955 = dot1_;
                    dot1_ = metal::fma(v3_1_7_, i0_7_.w, _e955);
                    float _e957 = dot0_;
                    float _e958 = all0_;
                    float _e959 = acc0_;
                    acc0_ = metal::fma(_e187, _e957, metal::fma(_e193, _e958, _e959));
                    float _e962 = dot1_;
                    float _e963 = all0_;
                    float _e964 = acc1_;
                    acc1_ = metal::fma(_e215, _e962, metal::fma(_e221, _e963, _e964));
                }
            }
            break;
        }
        default: {
            unit_1 = lane;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e1777 = unit_1;
                    unit_1 = _e1777 + 32u;
                }
                loop_init_3 = false;
                uint _e971 = unit_1;
                if (_e971 < units) {
                } else {
                    break;
                }
                {
                    uint _e973 = unit_1;
                    uint column_1 = _e973 * 32u;
                    uint _e977 = unit_1;
                    metal::uint4 u0_1 = w0_[(w0_1 + (_e977 * 4u)) / 4u];
                    uint q0_0_0_1 = u0_1.x;
                    uint q0_1_0_1 = u0_1.y;
                    uint q0_2_0_1 = u0_1.z;
                    uint q0_3_0_1 = u0_1.w;
                    uint g0_1 = s0_ + (column_1 / 64u);
                    uint _e996 = scales0_[g0_1 >> 1u];
                    float _e997 = number(_e996, g0_1);
                    uint _e1002 = biases0_[g0_1 >> 1u];
                    float _e1003 = number(_e1002, g0_1);
                    uint _e1005 = unit_1;
                    metal::uint4 u1_1 = w0_[(w1_1 + (_e1005 * 4u)) / 4u];
                    uint q1_0_0_1 = u1_1.x;
                    uint q1_1_0_1 = u1_1.y;
                    uint q1_2_0_1 = u1_1.z;
                    uint q1_3_0_1 = u1_1.w;
                    uint g1_1 = s1_ + (column_1 / 64u);
                    uint _e1024 = scales0_[g1_1 >> 1u];
                    float _e1025 = number(_e1024, g1_1);
                    uint _e1030 = biases0_[g1_1 >> 1u];
                    float _e1031 = number(_e1030, g1_1);
                    float v0_0_0_1 = static_cast<float>((q0_0_0_1 >> 0u) & 15u);
                    float v0_0_1_1 = static_cast<float>((q0_0_0_1 >> 4u) & 15u);
                    float v0_0_2_1 = static_cast<float>((q0_0_0_1 >> 8u) & 15u);
                    float v0_0_3_1 = static_cast<float>((q0_0_0_1 >> 12u) & 15u);
                    float v0_0_4_1 = static_cast<float>((q0_0_0_1 >> 16u) & 15u);
                    float v0_0_5_1 = static_cast<float>((q0_0_0_1 >> 20u) & 15u);
                    float v0_0_6_1 = static_cast<float>((q0_0_0_1 >> 24u) & 15u);
                    float v0_0_7_1 = static_cast<float>((q0_0_0_1 >> 28u) & 15u);
                    float v0_1_0_1 = static_cast<float>((q1_0_0_1 >> 0u) & 15u);
                    float v0_1_1_1 = static_cast<float>((q1_0_0_1 >> 4u) & 15u);
                    float v0_1_2_1 = static_cast<float>((q1_0_0_1 >> 8u) & 15u);
                    float v0_1_3_1 = static_cast<float>((q1_0_0_1 >> 12u) & 15u);
                    float v0_1_4_1 = static_cast<float>((q1_0_0_1 >> 16u) & 15u);
                    float v0_1_5_1 = static_cast<float>((q1_0_0_1 >> 20u) & 15u);
                    float v0_1_6_1 = static_cast<float>((q1_0_0_1 >> 24u) & 15u);
                    float v0_1_7_1 = static_cast<float>((q1_0_0_1 >> 28u) & 15u);
                    metal::float4 _e1118 = x[(column_1 >> 2u) + 0u];
                    metal::float4 _e1126 = weight[(column_1 >> 2u) + 0u];
                    metal::float4 i0_0_1 = (_e1118 * factor) * _e1126;
                    metal::float4 _e1134 = x[(column_1 >> 2u) + 1u];
                    metal::float4 _e1142 = weight[(column_1 >> 2u) + 1u];
                    metal::float4 i0_1_1 = (_e1134 * factor) * _e1142;
                    all0_1 = i0_0_1.x;
                    float _e1146 = all0_1;
                    all0_1 = _e1146 + i0_0_1.y;
                    float _e1149 = all0_1;
                    all0_1 = _e1149 + i0_0_1.z;
                    float _e1152 = all0_1;
                    all0_1 = _e1152 + i0_0_1.w;
                    float _e1155 = all0_1;
                    all0_1 = _e1155 + i0_1_1.x;
                    float _e1158 = all0_1;
                    all0_1 = _e1158 + i0_1_1.y;
                    float _e1161 = all0_1;
                    all0_1 = _e1161 + i0_1_1.z;
                    float _e1164 = all0_1;
                    all0_1 = _e1164 + i0_1_1.w;
                    dot0_1 = v0_0_0_1 * i0_0_1.x;
                    float _e1171 = dot0_1;
                    dot0_1 = metal::fma(v0_0_1_1, i0_0_1.y, _e1171);
                    float _e1174 = dot0_1;
                    dot0_1 = metal::fma(v0_0_2_1, i0_0_1.z, _e1174);
                    float _e1177 = dot0_1;
                    dot0_1 = metal::fma(v0_0_3_1, i0_0_1.w, _e1177);
                    float _e1180 = dot0_1;
                    dot0_1 = metal::fma(v0_0_4_1, i0_1_1.x, _e1180);
                    float _e1183 = dot0_1;
                    dot0_1 = metal::fma(v0_0_5_1, i0_1_1.y, _e1183);
                    float _e1186 = dot0_1;
                    dot0_1 = metal::fma(v0_0_6_1, i0_1_1.z, _e1186);
                    float _e1189 = dot0_1;
                    dot0_1 = metal::fma(v0_0_7_1, i0_1_1.w, _e1189);
                    dot1_1 = v0_1_0_1 * i0_0_1.x;
                    float _e1195 = dot1_1;
                    dot1_1 = metal::fma(v0_1_1_1, i0_0_1.y, _e1195);
                    float _e1198 = dot1_1;
                    dot1_1 = metal::fma(v0_1_2_1, i0_0_1.z, _e1198);
                    float _e1201 = dot1_1;
                    dot1_1 = metal::fma(v0_1_3_1, i0_0_1.w, _e1201);
                    float _e1204 = dot1_1;
                    dot1_1 = metal::fma(v0_1_4_1, i0_1_1.x, _e1204);
                    float _e1207 = dot1_1;
                    dot1_1 = metal::fma(v0_1_5_1, i0_1_1.y, _e1207);
                    float _e1210 = dot1_1;
                    dot1_1 = metal::fma(v0_1_6_1, i0_1_1.z, _e1210);
                    float _e1213 = dot1_1;
                    dot1_1 = metal::fma(v0_1_7_1, i0_1_1.w, _e1213);
                    float v1_0_0_1 = static_cast<float>((q0_1_0_1 >> 0u) & 15u);
                    float v1_0_1_1 = static_cast<float>((q0_1_0_1 >> 4u) & 15u);
                    float v1_0_2_1 = static_cast<float>((q0_1_0_1 >> 8u) & 15u);
                    float v1_0_3_1 = static_cast<float>((q0_1_0_1 >> 12u) & 15u);
                    float v1_0_4_1 = static_cast<float>((q0_1_0_1 >> 16u) & 15u);
                    float v1_0_5_1 = static_cast<float>((q0_1_0_1 >> 20u) & 15u);
                    float v1_0_6_1 = static_cast<float>((q0_1_0_1 >> 24u) & 15u);
                    float v1_0_7_1 = static_cast<float>((q0_1_0_1 >> 28u) & 15u);
                    float v1_1_0_1 = static_cast<float>((q1_1_0_1 >> 0u) & 15u);
                    float v1_1_1_1 = static_cast<float>((q1_1_0_1 >> 4u) & 15u);
                    float v1_1_2_1 = static_cast<float>((q1_1_0_1 >> 8u) & 15u);
                    float v1_1_3_1 = static_cast<float>((q1_1_0_1 >> 12u) & 15u);
                    float v1_1_4_1 = static_cast<float>((q1_1_0_1 >> 16u) & 15u);
                    float v1_1_5_1 = static_cast<float>((q1_1_0_1 >> 20u) & 15u);
                    float v1_1_6_1 = static_cast<float>((q1_1_0_1 >> 24u) & 15u);
                    float v1_1_7_1 = static_cast<float>((q1_1_0_1 >> 28u) & 15u);
                    metal::float4 _e1301 = x[(column_1 >> 2u) + 2u];
                    metal::float4 _e1309 = weight[(column_1 >> 2u) + 2u];
                    metal::float4 i0_2_1 = (_e1301 * factor) * _e1309;
                    metal::float4 _e1317 = x[(column_1 >> 2u) + 3u];
                    metal::float4 _e1325 = weight[(column_1 >> 2u) + 3u];
                    metal::float4 i0_3_1 = (_e1317 * factor) * _e1325;
                    float _e1327 = all0_1;
                    all0_1 = _e1327 + i0_2_1.x;
                    float _e1330 = all0_1;
                    all0_1 = _e1330 + i0_2_1.y;
                    float _e1333 = all0_1;
                    all0_1 = _e1333 + i0_2_1.z;
                    float _e1336 = all0_1;
                    all0_1 = _e1336 + i0_2_1.w;
                    float _e1339 = all0_1;
                    all0_1 = _e1339 + i0_3_1.x;
                    float _e1342 = all0_1;
                    all0_1 = _e1342 + i0_3_1.y;
                    float _e1345 = all0_1;
                    all0_1 = _e1345 + i0_3_1.z;
                    float _e1348 = all0_1;
                    all0_1 = _e1348 + i0_3_1.w;
                    float _e1352 = dot0_1;
                    dot0_1 = metal::fma(v1_0_0_1, i0_2_1.x, _e1352);
                    float _e1355 = dot0_1;
                    dot0_1 = metal::fma(v1_0_1_1, i0_2_1.y, _e1355);
                    float _e1358 = dot0_1;
                    dot0_1 = metal::fma(v1_0_2_1, i0_2_1.z, _e1358);
                    float _e1361 = dot0_1;
                    dot0_1 = metal::fma(v1_0_3_1, i0_2_1.w, _e1361);
                    float _e1364 = dot0_1;
                    dot0_1 = metal::fma(v1_0_4_1, i0_3_1.x, _e1364);
                    float _e1367 = dot0_1;
                    dot0_1 = metal::fma(v1_0_5_1, i0_3_1.y, _e1367);
                    float _e1370 = dot0_1;
                    dot0_1 = metal::fma(v1_0_6_1, i0_3_1.z, _e1370);
                    float _e1373 = dot0_1;
                    dot0_1 = metal::fma(v1_0_7_1, i0_3_1.w, _e1373);
                    float _e1376 = dot1_1;
                    dot1_1 = metal::fma(v1_1_0_1, i0_2_1.x, _e1376);
                    float _e1379 = dot1_1;
                    dot1_1 = metal::fma(v1_1_1_1, i0_2_1.y, _e1379);
                    float _e1382 = dot1_1;
                    dot1_1 = metal::fma(v1_1_2_1, i0_2_1.z, _e1382);
                    float _e1385 = dot1_1;
                    dot1_1 = metal::fma(v1_1_3_1, i0_2_1.w, _e1385);
                    float _e1388 = dot1_1;
                    dot1_1 = metal::fma(v1_1_4_1, i0_3_1.x, _e1388);
                    float _e1391 = dot1_1;
                    dot1_1 = metal::fma(v1_1_5_1, i0_3_1.y, _e1391);
                    float _e1394 = dot1_1;
                    dot1_1 = metal::fma(v1_1_6_1, i0_3_1.z, _e1394);
                    float _e1397 = dot1_1;
                    dot1_1 = metal::fma(v1_1_7_1, i0_3_1.w, _e1397);
                    float v2_0_0_1 = static_cast<float>((q0_2_0_1 >> 0u) & 15u);
                    float v2_0_1_1 = static_cast<float>((q0_2_0_1 >> 4u) & 15u);
                    float v2_0_2_1 = static_cast<float>((q0_2_0_1 >> 8u) & 15u);
                    float v2_0_3_1 = static_cast<float>((q0_2_0_1 >> 12u) & 15u);
                    float v2_0_4_1 = static_cast<float>((q0_2_0_1 >> 16u) & 15u);
                    float v2_0_5_1 = static_cast<float>((q0_2_0_1 >> 20u) & 15u);
                    float v2_0_6_1 = static_cast<float>((q0_2_0_1 >> 24u) & 15u);
                    float v2_0_7_1 = static_cast<float>((q0_2_0_1 >> 28u) & 15u);
                    float v2_1_0_1 = static_cast<float>((q1_2_0_1 >> 0u) & 15u);
                    float v2_1_1_1 = static_cast<float>((q1_2_0_1 >> 4u) & 15u);
                    float v2_1_2_1 = static_cast<float>((q1_2_0_1 >> 8u) & 15u);
                    float v2_1_3_1 = static_cast<float>((q1_2_0_1 >> 12u) & 15u);
                    float v2_1_4_1 = static_cast<float>((q1_2_0_1 >> 16u) & 15u);
                    float v2_1_5_1 = static_cast<float>((q1_2_0_1 >> 20u) & 15u);
                    float v2_1_6_1 = static_cast<float>((q1_2_0_1 >> 24u) & 15u);
                    float v2_1_7_1 = static_cast<float>((q1_2_0_1 >> 28u) & 15u);
                    metal::float4 _e1485 = x[(column_1 >> 2u) + 4u];
                    metal::float4 _e1493 = weight[(column_1 >> 2u) + 4u];
                    metal::float4 i0_4_1 = (_e1485 * factor) * _e1493;
                    metal::float4 _e1501 = x[(column_1 >> 2u) + 5u];
                    metal::float4 _e1509 = weight[(column_1 >> 2u) + 5u];
                    metal::float4 i0_5_1 = (_e1501 * factor) * _e1509;
                    float _e1511 = all0_1;
                    all0_1 = _e1511 + i0_4_1.x;
                    float _e1514 = all0_1;
                    all0_1 = _e1514 + i0_4_1.y;
                    float _e1517 = all0_1;
                    all0_1 = _e1517 + i0_4_1.z;
                    float _e1520 = all0_1;
                    all0_1 = _e1520 + i0_4_1.w;
                    float _e1523 = all0_1;
                    all0_1 = _e1523 + i0_5_1.x;
                    float _e1526 = all0_1;
                    all0_1 = _e1526 + i0_5_1.y;
                    float _e1529 = all0_1;
                    all0_1 = _e1529 + i0_5_1.z;
                    float _e1532 = all0_1;
                    all0_1 = _e1532 + i0_5_1.w;
                    float _e1536 = dot0_1;
                    dot0_1 = metal::fma(v2_0_0_1, i0_4_1.x, _e1536);
                    float _e1539 = dot0_1;
                    dot0_1 = metal::fma(v2_0_1_1, i0_4_1.y, _e1539);
                    float _e1542 = dot0_1;
                    dot0_1 = metal::fma(v2_0_2_1, i0_4_1.z, _e1542);
                    float _e1545 = dot0_1;
                    dot0_1 = metal::fma(v2_0_3_1, i0_4_1.w, _e1545);
                    float _e1548 = dot0_1;
                    dot0_1 = metal::fma(v2_0_4_1, i0_5_1.x, _e1548);
                    float _e1551 = dot0_1;
                    dot0_1 = metal::fma(v2_0_5_1, i0_5_1.y, _e1551);
                    float _e1554 = dot0_1;
                    dot0_1 = metal::fma(v2_0_6_1, i0_5_1.z, _e1554);
                    float _e1557 = dot0_1;
                    dot0_1 = metal::fma(v2_0_7_1, i0_5_1.w, _e1557);
                    float _e1560 = dot1_1;
                    dot1_1 = metal::fma(v2_1_0_1, i0_4_1.x, _e1560);
                    float _e1563 = dot1_1;
                    dot1_1 = metal::fma(v2_1_1_1, i0_4_1.y, _e1563);
                    float _e1566 = dot1_1;
                    dot1_1 = metal::fma(v2_1_2_1, i0_4_1.z, _e1566);
                    float _e1569 = dot1_1;
                    dot1_1 = metal::fma(v2_1_3_1, i0_4_1.w, _e1569);
                    float _e1572 = dot1_1;
                    dot1_1 = metal::fma(v2_1_4_1, i0_5_1.x, _e1572);
                    float _e1575 = dot1_1;
                    dot1_1 = metal::fma(v2_1_5_1, i0_5_1.y, _e1575);
                    float _e1578 = dot1_1;
                    dot1_1 = metal::fma(v2_1_6_1, i0_5_1.z, _e1578);
                    float _e1581 = dot1_1;
                    dot1_1 = metal::fma(v2_1_7_1, i0_5_1.w, _e1581);
                    float v3_0_0_1 = static_cast<float>((q0_3_0_1 >> 0u) & 15u);
                    float v3_0_1_1 = static_cast<float>((q0_3_0_1 >> 4u) & 15u);
                    float v3_0_2_1 = static_cast<float>((q0_3_0_1 >> 8u) & 15u);
                    float v3_0_3_1 = static_cast<float>((q0_3_0_1 >> 12u) & 15u);
                    float v3_0_4_1 = static_cast<float>((q0_3_0_1 >> 16u) & 15u);
                    float v3_0_5_1 = static_cast<float>((q0_3_0_1 >> 20u) & 15u);
                    float v3_0_6_1 = static_cast<float>((q0_3_0_1 >> 24u) & 15u);
                    float v3_0_7_1 = static_cast<float>((q0_3_0_1 >> 28u) & 15u);
                    float v3_1_0_1 = static_cast<float>((q1_3_0_1 >> 0u) & 15u);
                    float v3_1_1_1 = static_cast<float>((q1_3_0_1 >> 4u) & 15u);
                    float v3_1_2_1 = static_cast<float>((q1_3_0_1 >> 8u) & 15u);
                    float v3_1_3_1 = static_cast<float>((q1_3_0_1 >> 12u) & 15u);
                    float v3_1_4_1 = static_cast<float>((q1_3_0_1 >> 16u) & 15u);
                    float v3_1_5_1 = static_cast<float>((q1_3_0_1 >> 20u) & 15u);
                    float v3_1_6_1 = static_cast<float>((q1_3_0_1 >> 24u) & 15u);
                    float v3_1_7_1 = static_cast<float>((q1_3_0_1 >> 28u) & 15u);
                    metal::float4 _e1669 = x[(column_1 >> 2u) + 6u];
                    metal::float4 _e1677 = weight[(column_1 >> 2u) + 6u];
                    metal::float4 i0_6_1 = (_e1669 * factor) * _e1677;
                    metal::float4 _e1685 = x[(column_1 >> 2u) + 7u];
                    metal::float4 _e1693 = weight[(column_1 >> 2u) + 7u];
                    metal::float4 i0_7_1 = (_e1685 * factor) * _e1693;
                    float _e1695 = all0_1;
                    all0_1 = _e1695 + i0_6_1.x;
                    float _e1698 = all0_1;
                    all0_1 = _e1698 + i0_6_1.y;
                    float _e1701 = all0_1;
                    all0_1 = _e1701 + i0_6_1.z;
                    float _e1704 = all0_1;
                    all0_1 = _e1704 + i0_6_1.w;
                    float _e1707 = all0_1;
                    all0_1 = _e1707 + i0_7_1.x;
                    float _e1710 = all0_1;
                    all0_1 = _e1710 + i0_7_1.y;
                    float _e1713 = all0_1;
                    all0_1 = _e1713 + i0_7_1.z;
                    float _e1716 = all0_1;
                    all0_1 = _e1716 + i0_7_1.w;
                    float _e1720 = dot0_1;
                    dot0_1 = metal::fma(v3_0_0_1, i0_6_1.x, _e1720);
                    float _e1723 = dot0_1;
                    dot0_1 = metal::fma(v3_0_1_1, i0_6_1.y, _e1723);
                    float _e1726 = dot0_1;
                    dot0_1 = metal::fma(v3_0_2_1, i0_6_1.z, _e1726);
                    float _e1729 = dot0_1;
                    dot0_1 = metal::fma(v3_0_3_1, i0_6_1.w, _e1729);
                    float _e1732 = dot0_1;
                    dot0_1 = metal::fma(v3_0_4_1, i0_7_1.x, _e1732);
                    float _e1735 = dot0_1;
                    dot0_1 = metal::fma(v3_0_5_1, i0_7_1.y, _e1735);
                    float _e1738 = dot0_1;
                    dot0_1 = metal::fma(v3_0_6_1, i0_7_1.z, _e1738);
                    float _e1741 = dot0_1;
                    dot0_1 = metal::fma(v3_0_7_1, i0_7_1.w, _e1741);
                    float _e1744 = dot1_1;
                    dot1_1 = metal::fma(v3_1_0_1, i0_6_1.x, _e1744);
                    float _e1747 = dot1_1;
                    dot1_1 = metal::fma(v3_1_1_1, i0_6_1.y, _e1747);
                    float _e1750 = dot1_1;
                    dot1_1 = metal::fma(v3_1_2_1, i0_6_1.z, _e1750);
                    float _e1753 = dot1_1;
                    dot1_1 = metal::fma(v3_1_3_1, i0_6_1.w, _e1753);
                    float _e1756 = dot1_1;
                    dot1_1 = metal::fma(v3_1_4_1, i0_7_1.x, _e1756);
                    float _e1759 = dot1_1;
                    dot1_1 = metal::fma(v3_1_5_1, i0_7_1.y, _e1759);
                    float _e1762 = dot1_1;
                    dot1_1 = metal::fma(v3_1_6_1, i0_7_1.z, _e1762);
                    float _e1765 = dot1_1;
                    dot1_1 = metal::fma(v3_1_7_1, i0_7_1.w, _e1765);
                    float _e1767 = dot0_1;
                    float _e1768 = all0_1;
                    float _e1769 = acc0_;
                    acc0_ = metal::fma(_e997, _e1767, metal::fma(_e1003, _e1768, _e1769));
                    float _e1772 = dot1_1;
                    float _e1773 = all0_1;
                    float _e1774 = acc1_;
                    acc1_ = metal::fma(_e1025, _e1772, metal::fma(_e1031, _e1773, _e1774));
                }
            }
            break;
        }
    }
    float _e1789 = acc0_;
    red.inner[(((team * 2u) + 0u) * 32u) + lane] = _e1789;
    float _e1799 = acc1_;
    red.inner[(((team * 2u) + 1u) * 32u) + lane] = _e1799;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e1825 = red.inner[at];
        float _e1830 = red.inner[at + 1u];
        float _e1836 = red.inner[at + 2u];
        float _e1841 = red.inner[at + 3u];
        float _e1848 = red.inner[at + 4u];
        float _e1853 = red.inner[at + 5u];
        float _e1859 = red.inner[at + 6u];
        float _e1864 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e1825 + _e1830) + (_e1836 + _e1841)) + ((_e1848 + _e1853) + (_e1859 + _e1864));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_1 = ((team * 2u) + lane) * 4u;
        float _e1877 = part.inner[at_1];
        float _e1882 = part.inner[at_1 + 1u];
        float _e1888 = part.inner[at_1 + 2u];
        float _e1893 = part.inner[at_1 + 3u];
        float sum = (_e1877 + _e1882) + (_e1888 + _e1893);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        uint row = first_1 + r;
        uint _e1903 = rows;
        if (row < _e1903) {
            uint _e1905 = which;
            switch(_e1905) {
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
