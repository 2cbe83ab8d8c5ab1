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

typedef metal::uint4 type_2[1];
typedef uint type_3[1];
typedef metal::float4 type_6[1];
typedef float type_7[1];
struct Parameters {
    uint rows;
    uint columns;
    uint tokens;
    uint row_words;
    uint row_groups;
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

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& w [[buffer(1)]]
, device type_3 const& scales [[buffer(2)]]
, device type_3 const& biases [[buffer(3)]]
, device type_6 const& x [[buffer(4)]]
, device type_7& y [[buffer(5)]]
, device type_3 const& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& red
, threadgroup type_9& part
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
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
    uint first = ((wid.x * 8u) + team) * 2u;
    uint _e19 = p.columns;
    uint units = _e19 / 32u;
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
    uint _e61 = p.tokens;
    uint _e67 = p.columns;
    uint x0_ = metal::min((wid.y * 1u) + 0u, _e61 - 1u) * _e67;
    unit = lane;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e816 = unit;
            unit = _e816 + 32u;
        }
        loop_init = false;
        uint _e74 = unit;
        if (_e74 < units) {
        } else {
            break;
        }
        {
            uint _e76 = unit;
            uint column = _e76 * 32u;
            uint _e80 = unit;
            metal::uint4 u0_ = w[(w0_ + (_e80 * 4u)) / 4u];
            uint q0_0_0_ = u0_.x;
            uint q0_1_0_ = u0_.y;
            uint q0_2_0_ = u0_.z;
            uint q0_3_0_ = u0_.w;
            uint g0_ = s0_ + (column / 64u);
            uint _e99 = scales[g0_ >> 1u];
            float _e100 = number(_e99, g0_);
            uint _e105 = biases[g0_ >> 1u];
            float _e106 = number(_e105, g0_);
            uint _e108 = unit;
            metal::uint4 u1_ = w[(w1_ + (_e108 * 4u)) / 4u];
            uint q1_0_0_ = u1_.x;
            uint q1_1_0_ = u1_.y;
            uint q1_2_0_ = u1_.z;
            uint q1_3_0_ = u1_.w;
            uint g1_ = s1_ + (column / 64u);
            uint _e127 = scales[g1_ >> 1u];
            float _e128 = number(_e127, g1_);
            uint _e133 = biases[g1_ >> 1u];
            float _e134 = number(_e133, g1_);
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
            metal::float4 i0_0_ = x[((x0_ + column) >> 2u) + 0u];
            metal::float4 i0_1_ = x[((x0_ + column) >> 2u) + 1u];
            all0_ = i0_0_.x;
            float _e233 = all0_;
            all0_ = _e233 + i0_0_.y;
            float _e236 = all0_;
            all0_ = _e236 + i0_0_.z;
            float _e239 = all0_;
            all0_ = _e239 + i0_0_.w;
            float _e242 = all0_;
            all0_ = _e242 + i0_1_.x;
            float _e245 = all0_;
            all0_ = _e245 + i0_1_.y;
            float _e248 = all0_;
            all0_ = _e248 + i0_1_.z;
            float _e251 = all0_;
            all0_ = _e251 + i0_1_.w;
            dot0_ = v0_0_0_ * i0_0_.x;
            float _e258 = dot0_;
            dot0_ = metal::fma(v0_0_1_, i0_0_.y, _e258);
            float _e261 = dot0_;
            dot0_ = metal::fma(v0_0_2_, i0_0_.z, _e261);
            float _e264 = dot0_;
            dot0_ = metal::fma(v0_0_3_, i0_0_.w, _e264);
            float _e267 = dot0_;
            dot0_ = metal::fma(v0_0_4_, i0_1_.x, _e267);
            float _e270 = dot0_;
            dot0_ = metal::fma(v0_0_5_, i0_1_.y, _e270);
            float _e273 = dot0_;
            dot0_ = metal::fma(v0_0_6_, i0_1_.z, _e273);
            float _e276 = dot0_;
            dot0_ = metal::fma(v0_0_7_, i0_1_.w, _e276);
            dot1_ = v0_1_0_ * i0_0_.x;
            float _e282 = dot1_;
            dot1_ = metal::fma(v0_1_1_, i0_0_.y, _e282);
            float _e285 = dot1_;
            dot1_ = metal::fma(v0_1_2_, i0_0_.z, _e285);
            float _e288 = dot1_;
            dot1_ = metal::fma(v0_1_3_, i0_0_.w, _e288);
            float _e291 = dot1_;
            dot1_ = metal::fma(v0_1_4_, i0_1_.x, _e291);
            float _e294 = dot1_;
            dot1_ = metal::fma(v0_1_5_, i0_1_.y, _e294);
            float _e297 = dot1_;
            dot1_ = metal::fma(v0_1_6_, i0_1_.z, _e297);
            float _e300 = dot1_;
            dot1_ = metal::fma(v0_1_7_, i0_1_.w, _e300);
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
            metal::float4 i0_2_ = x[((x0_ + column) >> 2u) + 2u];
            metal::float4 i0_3_ = x[((x0_ + column) >> 2u) + 3u];
            float _e398 = all0_;
            all0_ = _e398 + i0_2_.x;
            float _e401 = all0_;
            all0_ = _e401 + i0_2_.y;
            float _e404 = all0_;
            all0_ = _e404 + i0_2_.z;
            float _e407 = all0_;
            all0_ = _e407 + i0_2_.w;
            float _e410 = all0_;
            all0_ = _e410 + i0_3_.x;
            float _e413 = all0_;
            all0_ = _e413 + i0_3_.y;
            float _e416 = all0_;
            all0_ = _e416 + i0_3_.z;
            float _e419 = all0_;
            all0_ = _e419 + i0_3_.w;
            float _e423 = dot0_;
            dot0_ = metal::fma(v1_0_0_, i0_2_.x, _e423);
            float _e426 = dot0_;
            dot0_ = metal::fma(v1_0_1_, i0_2_.y, _e426);
            float _e429 = dot0_;
            dot0_ = metal::fma(v1_0_2_, i0_2_.z, _e429);
            float _e432 = dot0_;
            dot0_ = metal::fma(v1_0_3_, i0_2_.w, _e432);
            float _e435 = dot0_;
            dot0_ = metal::fma(v1_0_4_, i0_3_.x, _e435);
            float _e438 = dot0_;
            dot0_ = metal::fma(v1_0_5_, i0_3_.y, _e438);
            float _e441 = dot0_;
            dot0_ = metal::fma(v1_0_6_, i0_3_.z, _e441);
            float _e444 = dot0_;
            dot0_ = metal::fma(v1_0_7_, i0_3_.w, _e444);
            float _e447 = dot1_;
            dot1_ = metal::fma(v1_1_0_, i0_2_.x, _e447);
            float _e450 = dot1_;
            dot1_ = metal::fma(v1_1_1_, i0_2_.y, _e450);
            float _e453 = dot1_;
            dot1_ = metal::fma(v1_1_2_, i0_2_.z, _e453);
            float _e456 = dot1_;
            dot1_ = metal::fma(v1_1_3_, i0_2_.w, _e456);
            float _e459 = dot1_;
            dot1_ = metal::fma(v1_1_4_, i0_3_.x, _e459);
            float _e462 = dot1_;
            dot1_ = metal::fma(v1_1_5_, i0_3_.y, _e462);
            float _e465 = dot1_;
            dot1_ = metal::fma(v1_1_6_, i0_3_.z, _e465);
            float _e468 = dot1_;
            dot1_ = metal::fma(v1_1_7_, i0_3_.w, _e468);
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
            metal::float4 i0_4_ = x[((x0_ + column) >> 2u) + 4u];
            metal::float4 i0_5_ = x[((x0_ + column) >> 2u) + 5u];
            float _e566 = all0_;
            all0_ = _e566 + i0_4_.x;
            float _e569 = all0_;
            all0_ = _e569 + i0_4_.y;
            float _e572 = all0_;
            all0_ = _e572 + i0_4_.z;
            float _e575 = all0_;
            all0_ = _e575 + i0_4_.w;
            float _e578 = all0_;
            all0_ = _e578 + i0_5_.x;
            float _e581 = all0_;
            all0_ = _e581 + i0_5_.y;
            float _e584 = all0_;
            all0_ = _e584 + i0_5_.z;
            float _e587 = all0_;
            all0_ = _e587 + i0_5_.w;
            float _e591 = dot0_;
            dot0_ = metal::fma(v2_0_0_, i0_4_.x, _e591);
            float _e594 = dot0_;
            dot0_ = metal::fma(v2_0_1_, i0_4_.y, _e594);
            float _e597 = dot0_;
            dot0_ = metal::fma(v2_0_2_, i0_4_.z, _e597);
            float _e600 = dot0_;
            dot0_ = metal::fma(v2_0_3_, i0_4_.w, _e600);
            float _e603 = dot0_;
            dot0_ = metal::fma(v2_0_4_, i0_5_.x, _e603);
            float _e606 = dot0_;
            dot0_ = metal::fma(v2_0_5_, i0_5_.y, _e606);
            float _e609 = dot0_;
            dot0_ = metal::fma(v2_0_6_, i0_5_.z, _e609);
            float _e612 = dot0_;
            dot0_ = metal::fma(v2_0_7_, i0_5_.w, _e612);
            float _e615 = dot1_;
            dot1_ = metal::fma(v2_1_0_, i0_4_.x, _e615);
            float _e618 = dot1_;
            dot1_ = metal::fma(v2_1_1_, i0_4_.y, _e618);
            float _e621 = dot1_;
            dot1_ = metal::fma(v2_1_2_, i0_4_.z, _e621);
            float _e624 = dot1_;
            dot1_ = metal::fma(v2_1_3_, i0_4_.w, _e624);
            float _e627 = dot1_;
            dot1_ = metal::fma(v2_1_4_, i0_5_.x, _e627);
            float _e630 = dot1_;
            dot1_ = metal::fma(v2_1_5_, i0_5_.y, _e630);
            float _e633 = dot1_;
            dot1_ = metal::fma(v2_1_6_, i0_5_.z, _e633);
            float _e636 = dot1_;
            dot1_ = metal::fma(v2_1_7_, i0_5_.w, _e636);
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
            metal::float4 i0_6_ = x[((x0_ + column) >> 2u) + 6u];
            metal::float4 i0_7_ = x[((x0_ + column) >> 2u) + 7u];
            float _e734 = all0_;
            all0_ = _e734 + i0_6_.x;
            float _e737 = all0_;
            all0_ = _e737 + i0_6_.y;
            float _e740 = all0_;
            all0_ = _e740 + i0_6_.z;
            float _e743 = all0_;
            all0_ = _e743 + i0_6_.w;
            float _e746 = all0_;
            all0_ = _e746 + i0_7_.x;
            float _e749 = all0_;
            all0_ = _e749 + i0_7_.y;
            float _e752 = all0_;
            all0_ = _e752 + i0_7_.z;
            float _e755 = all0_;
            all0_ = _e755 + i0_7_.w;
            float _e759 = dot0_;
            dot0_ = metal::fma(v3_0_0_, i0_6_.x, _e759);
            float _e762 = dot0_;
            dot0_ = metal::fma(v3_0_1_, i0_6_.y, _e762);
            float _e765 = dot0_;
            dot0_ = metal::fma(v3_0_2_, i0_6_.z, _e765);
            float _e768 = dot0_;
            dot0_ = metal::fma(v3_0_3_, i0_6_.w, _e768);
            float _e771 = dot0_;
            dot0_ = metal::fma(v3_0_4_, i0_7_.x, _e771);
            float _e774 = dot0_;
            dot0_ = metal::fma(v3_0_5_, i0_7_.y, _e774);
            float _e777 = dot0_;
            dot0_ = metal::fma(v3_0_6_, i0_7_.z, _e777);
            float _e780 = dot0_;
            dot0_ = metal::fma(v3_0_7_, i0_7_.w, _e780);
            float _e783 = dot1_;
            dot1_ = metal::fma(v3_1_0_, i0_6_.x, _e783);
            float _e786 = dot1_;
            dot1_ = metal::fma(v3_1_1_, i0_6_.y, _e786);
            float _e789 = dot1_;
            dot1_ = metal::fma(v3_1_2_, i0_6_.z, _e789);
            float _e792 = dot1_;
            dot1_ = metal::fma(v3_1_3_, i0_6_.w, _e792);
            float _e795 = dot1_;
            dot1_ = metal::fma(v3_1_4_, i0_7_.x, _e795);
            float _e798 = dot1_;
            dot1_ = metal::fma(v3_1_5_, i0_7_.y, _e798);
            float _e801 = dot1_;
            dot1_ = metal::fma(v3_1_6_, i0_7_.z, _e801);
            float _e804 = dot1_;
            dot1_ = metal::fma(v3_1_7_, i0_7_.w, _e804);
            float _e806 = dot0_;
            float _e807 = all0_;
            float _e808 = acc0_;
            acc0_ = metal::fma(_e100, _e806, metal::fma(_e106, _e807, _e808));
            float _e811 = dot1_;
            float _e812 = all0_;
            float _e813 = acc1_;
            acc1_ = metal::fma(_e128, _e811, metal::fma(_e134, _e812, _e813));
        }
    }
    float _e828 = acc0_;
    red.inner[(((team * 2u) + 0u) * 32u) + lane] = _e828;
    float _e838 = acc1_;
    red.inner[(((team * 2u) + 1u) * 32u) + lane] = _e838;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e864 = red.inner[at];
        float _e869 = red.inner[at + 1u];
        float _e875 = red.inner[at + 2u];
        float _e880 = red.inner[at + 3u];
        float _e887 = red.inner[at + 4u];
        float _e892 = red.inner[at + 5u];
        float _e898 = red.inner[at + 6u];
        float _e903 = red.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e864 + _e869) + (_e875 + _e880)) + ((_e887 + _e892) + (_e898 + _e903));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_1 = ((team * 2u) + lane) * 4u;
        float _e916 = part.inner[at_1];
        float _e921 = part.inner[at_1 + 1u];
        float _e927 = part.inner[at_1 + 2u];
        float _e932 = part.inner[at_1 + 3u];
        float sum = (_e916 + _e921) + (_e927 + _e932);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        uint row = first + r;
        uint token = (wid.y * 1u) + t;
        uint _e948 = p.rows;
        if (row < _e948) {
            uint _e954 = p.tokens;
            local = token < _e954;
        } else {
            local = false;
        }
        bool _e957 = local;
        if (_e957) {
            uint _e960 = p.rows;
            uint at_2 = (token * _e960) + row;
            y[at_2] = sum;
            return;
        } else {
            return;
        }
    } else {
        return;
    }
}
