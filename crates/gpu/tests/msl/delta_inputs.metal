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
    uint size12;
    uint size13;
    uint size14;
    uint size15;
    uint size16;
    uint size17;
    uint size18;
    uint size19;
    uint size20;
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
    uint rows2_;
    uint rows3_;
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
, device type_2 const& w2_ [[buffer(7)]]
, device type_3 const& scales2_ [[buffer(8)]]
, device type_3 const& biases2_ [[buffer(9)]]
, device type_2 const& w3_ [[buffer(10)]]
, device type_3 const& scales3_ [[buffer(11)]]
, device type_3 const& biases3_ [[buffer(12)]]
, device type_6 const& x [[buffer(13)]]
, device type_6 const& weight [[buffer(14)]]
, device type_7& y0_ [[buffer(15)]]
, device type_7& y1_ [[buffer(16)]]
, device type_7& y2_ [[buffer(17)]]
, device type_7& y3_ [[buffer(18)]]
, device type_7 const& filter_of [[buffer(19)]]
, device type_7& tail [[buffer(20)]]
, device type_3 const& control [[buffer(21)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& staged
, threadgroup type_9& sums
, threadgroup type_10& part
, threadgroup type_11& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(22)]]
) {
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    uint which = 0u;
    uint group = {};
    uint rows = {};
    bool local = {};
    bool local_1 = {};
    bool local_2 = {};
    float tap0_ = 0.0;
    float old0_ = 0.0;
    float tap1_ = 0.0;
    float old1_ = 0.0;
    float tap2_ = 0.0;
    float old2_ = 0.0;
    float tap3_ = 0.0;
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
    uint begin = 0u;
    uint vec_at = {};
    float all0_0_ = {};
    float dot0_0_ = {};
    float dot1_0_ = {};
    float all0_0_1 = {};
    float dot0_0_1 = {};
    float dot1_0_1 = {};
    float filtered = 0.0;
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
    uint _e55 = which;
    if (_e55 == 1u) {
        uint _e60 = group;
        uint _e63 = p.rows1_;
        local_1 = _e60 >= ((_e63 + 15u) / 16u);
    } else {
        local_1 = false;
    }
    bool _e70 = local_1;
    if (_e70) {
        uint _e71 = group;
        uint _e74 = p.rows1_;
        group = _e71 - ((_e74 + 15u) / 16u);
        which = 2u;
        uint _e83 = p.rows2_;
        rows = _e83;
    }
    uint _e84 = which;
    if (_e84 == 2u) {
        uint _e89 = group;
        uint _e92 = p.rows2_;
        local_2 = _e89 >= ((_e92 + 15u) / 16u);
    } else {
        local_2 = false;
    }
    bool _e99 = local_2;
    if (_e99) {
        uint _e100 = group;
        uint _e103 = p.rows2_;
        group = _e100 - ((_e103 + 15u) / 16u);
        which = 3u;
        uint _e112 = p.rows3_;
        rows = _e112;
    }
    uint _e113 = group;
    uint first_1 = ((_e113 * 8u) + team) * 2u;
    uint _e121 = rows;
    uint row0_ = metal::min(first_1 + 0u, _e121 - 1u);
    uint _e127 = rows;
    uint row1_ = metal::min(first_1 + 1u, _e127 - 1u);
    uint _e133 = p.row_words;
    uint w0_1 = row0_ * _e133;
    uint _e137 = p.row_groups;
    uint s0_ = row0_ * _e137;
    uint _e141 = p.row_words;
    uint w1_1 = row1_ * _e141;
    uint _e145 = p.row_groups;
    uint s1_ = row1_ * _e145;
    uint _e161 = which;
    if (_e161 == 0u) {
        uint _e167 = rows;
        uint channel = metal::min(first_1 + (lane % 2u), _e167 - 1u);
        float _e177 = filter_of[(channel * 4u) + 0u];
        tap0_ = _e177;
        uint _e182 = p.rows0_;
        float _e186 = tail[(0u * _e182) + channel];
        old0_ = _e186;
        float _e193 = filter_of[(channel * 4u) + 1u];
        tap1_ = _e193;
        uint _e198 = p.rows0_;
        float _e202 = tail[(1u * _e198) + channel];
        old1_ = _e202;
        float _e209 = filter_of[(channel * 4u) + 2u];
        tap2_ = _e209;
        uint _e214 = p.rows0_;
        float _e218 = tail[(2u * _e214) + channel];
        old2_ = _e218;
        float _e225 = filter_of[(channel * 4u) + 3u];
        tap3_ = _e225;
    }
    {
        uint unit0_ = metal::min((0u + 0u) + lane, units - 1u);
        uint unit1_ = metal::min((0u + 32u) + lane, units - 1u);
        uint _e251 = which;
        switch(_e251) {
            case 3u: {
                metal::uint4 _e257 = w3_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e257;
                uint _e267 = scales3_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e267;
                uint _e277 = biases3_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e277;
                metal::uint4 _e283 = w3_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e283;
                uint _e293 = scales3_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e293;
                uint _e303 = biases3_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e303;
                metal::uint4 _e309 = w3_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e309;
                uint _e319 = scales3_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e319;
                uint _e329 = biases3_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e329;
                metal::uint4 _e335 = w3_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e335;
                uint _e345 = scales3_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e345;
                uint _e355 = biases3_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e355;
                break;
            }
            case 2u: {
                metal::uint4 _e361 = w2_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e361;
                uint _e371 = scales2_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e371;
                uint _e381 = biases2_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e381;
                metal::uint4 _e387 = w2_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e387;
                uint _e397 = scales2_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e397;
                uint _e407 = biases2_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e407;
                metal::uint4 _e413 = w2_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e413;
                uint _e423 = scales2_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e423;
                uint _e433 = biases2_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e433;
                metal::uint4 _e439 = w2_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e439;
                uint _e449 = scales2_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e449;
                uint _e459 = biases2_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e459;
                break;
            }
            case 1u: {
                metal::uint4 _e465 = w1_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e465;
                uint _e475 = scales1_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e475;
                uint _e485 = biases1_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e485;
                metal::uint4 _e491 = w1_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e491;
                uint _e501 = scales1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e501;
                uint _e511 = biases1_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e511;
                metal::uint4 _e517 = w1_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e517;
                uint _e527 = scales1_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e527;
                uint _e537 = biases1_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e537;
                metal::uint4 _e543 = w1_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e543;
                uint _e553 = scales1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e553;
                uint _e563 = biases1_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e563;
                break;
            }
            default: {
                metal::uint4 _e569 = w0_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e569;
                uint _e579 = scales0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e579;
                uint _e589 = biases0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e589;
                metal::uint4 _e595 = w0_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e595;
                uint _e605 = scales0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e605;
                uint _e615 = biases0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e615;
                metal::uint4 _e621 = w0_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e621;
                uint _e631 = scales0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e631;
                uint _e641 = biases0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e641;
                metal::uint4 _e647 = w0_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e647;
                uint _e657 = scales0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e657;
                uint _e667 = biases0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e667;
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
            uint _e690 = i;
            i = _e690 + 256u;
        }
        loop_init = false;
        uint _e673 = i;
        uint _e676 = p.columns;
        if (_e673 < _e676) {
        } else {
            break;
        }
        {
            uint _e679 = i;
            uint _e683 = i;
            float value = x[_e679 >> 2u][_e683 & 3u];
            float _e688 = squares;
            squares = metal::fma(value, value, _e688);
        }
    }
    float _e695 = squares;
    red.inner[lid] = _e695;
    float _e696 = tree_sum(lid, red);
    uint _e699 = p.columns;
    uint _e704 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e696 / static_cast<float>(_e699)) + as_type<float>(_e704));
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e2946 = begin;
            begin = _e2946 + 64u;
        }
        loop_init_1 = false;
        uint _e712 = begin;
        if (_e712 < units) {
        } else {
            break;
        }
        {
            uint _e714 = begin;
            if (_e714 > 0u) {
                uint next = begin;
                uint unit0_1 = metal::min((next + 0u) + lane, units - 1u);
                uint unit1_1 = metal::min((next + 32u) + lane, units - 1u);
                uint _e730 = which;
                switch(_e730) {
                    case 3u: {
                        metal::uint4 _e736 = w3_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e736;
                        uint _e746 = scales3_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e746;
                        uint _e756 = biases3_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e756;
                        metal::uint4 _e762 = w3_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e762;
                        uint _e772 = scales3_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e772;
                        uint _e782 = biases3_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e782;
                        metal::uint4 _e788 = w3_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e788;
                        uint _e798 = scales3_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e798;
                        uint _e808 = biases3_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e808;
                        metal::uint4 _e814 = w3_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e814;
                        uint _e824 = scales3_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e824;
                        uint _e834 = biases3_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e834;
                        break;
                    }
                    case 2u: {
                        metal::uint4 _e840 = w2_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e840;
                        uint _e850 = scales2_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e850;
                        uint _e860 = biases2_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e860;
                        metal::uint4 _e866 = w2_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e866;
                        uint _e876 = scales2_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e876;
                        uint _e886 = biases2_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e886;
                        metal::uint4 _e892 = w2_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e892;
                        uint _e902 = scales2_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e902;
                        uint _e912 = biases2_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e912;
                        metal::uint4 _e918 = w2_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e918;
                        uint _e928 = scales2_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e928;
                        uint _e938 = biases2_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e938;
                        break;
                    }
                    case 1u: {
                        metal::uint4 _e944 = w1_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e944;
                        uint _e954 = scales1_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e954;
                        uint _e964 = biases1_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e964;
                        metal::uint4 _e970 = w1_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e970;
                        uint _e980 = scales1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e980;
                        uint _e990 = biases1_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e990;
                        metal::uint4 _e996 = w1_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e996;
                        uint _e1006 = scales1_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e1006;
                        uint _e1016 = biases1_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e1016;
                        metal::uint4 _e1022 = w1_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e1022;
                        uint _e1032 = scales1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e1032;
                        uint _e1042 = biases1_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e1042;
                        break;
                    }
                    default: {
                        metal::uint4 _e1048 = w0_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e1048;
                        uint _e1058 = scales0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e1058;
                        uint _e1068 = biases0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e1068;
                        metal::uint4 _e1074 = w0_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e1074;
                        uint _e1084 = scales0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e1084;
                        uint _e1094 = biases0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e1094;
                        metal::uint4 _e1100 = w0_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e1100;
                        uint _e1110 = scales0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e1110;
                        uint _e1120 = biases0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e1120;
                        metal::uint4 _e1126 = w0_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e1126;
                        uint _e1136 = scales0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e1136;
                        uint _e1146 = biases0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e1146;
                        break;
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e1147 = begin;
            uint _e1154 = p.columns;
            uint vec_end = metal::min((_e1147 + 64u) * 8u, _e1154 >> 2u);
            uint _e1158 = begin;
            vec_at = (_e1158 * 8u) + lid;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e1185 = vec_at;
                    vec_at = _e1185 + 256u;
                }
                loop_init_2 = false;
                uint _e1163 = vec_at;
                if (_e1163 < vec_end) {
                } else {
                    break;
                }
                {
                    uint _e1165 = vec_at;
                    uint _e1166 = begin;
                    uint local_3 = _e1165 - (_e1166 * 8u);
                    uint _e1176 = vec_at;
                    metal::float4 _e1178 = x[_e1176];
                    uint _e1181 = vec_at;
                    metal::float4 _e1183 = weight[_e1181];
                    staged.inner[local_3 + (local_3 >> 3u)] = (_e1178 * factor) * _e1183;
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
            uint _e1200 = begin;
            uint unit0_2 = (_e1200 + 0u) + lane;
            if (unit0_2 < units) {
                uint column = unit0_2 * 32u;
                uint q0_0_0_ = u0_0_0_.x;
                uint q0_1_0_ = u0_0_0_.y;
                uint q0_2_0_ = u0_0_0_.z;
                uint q0_3_0_ = u0_0_0_.w;
                float _e1214 = number(sw0_0_, s0_ + (column / 64u));
                float _e1218 = number(bw0_0_, s0_ + (column / 64u));
                uint q1_0_0_ = u1_0_0_.x;
                uint q1_1_0_ = u1_0_0_.y;
                uint q1_2_0_ = u1_0_0_.z;
                uint q1_3_0_ = u1_0_0_.w;
                float _e1226 = number(sw1_0_, s1_ + (column / 64u));
                float _e1230 = number(bw1_0_, s1_ + (column / 64u));
                uint _e1233 = begin;
                uint local_4 = (column >> 2u) - (_e1233 * 8u);
                uint place = local_4 + (local_4 >> 3u);
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
                float _e1778 = all0_0_;
                all0_0_ = _e1778 + i0_0_0_.y;
                float _e1781 = all0_0_;
                all0_0_ = _e1781 + i0_0_0_.z;
                float _e1784 = all0_0_;
                all0_0_ = _e1784 + i0_0_0_.w;
                float _e1787 = all0_0_;
                all0_0_ = _e1787 + i0_0_1_.x;
                float _e1790 = all0_0_;
                all0_0_ = _e1790 + i0_0_1_.y;
                float _e1793 = all0_0_;
                all0_0_ = _e1793 + i0_0_1_.z;
                float _e1796 = all0_0_;
                all0_0_ = _e1796 + i0_0_1_.w;
                float _e1799 = all0_0_;
                all0_0_ = _e1799 + i0_0_2_.x;
                float _e1802 = all0_0_;
                all0_0_ = _e1802 + i0_0_2_.y;
                float _e1805 = all0_0_;
                all0_0_ = _e1805 + i0_0_2_.z;
                float _e1808 = all0_0_;
                all0_0_ = _e1808 + i0_0_2_.w;
                float _e1811 = all0_0_;
                all0_0_ = _e1811 + i0_0_3_.x;
                float _e1814 = all0_0_;
                all0_0_ = _e1814 + i0_0_3_.y;
                float _e1817 = all0_0_;
                all0_0_ = _e1817 + i0_0_3_.z;
                float _e1820 = all0_0_;
                all0_0_ = _e1820 + i0_0_3_.w;
                float _e1823 = all0_0_;
                all0_0_ = _e1823 + i0_0_4_.x;
                float _e1826 = all0_0_;
                all0_0_ = _e1826 + i0_0_4_.y;
                float _e1829 = all0_0_;
                all0_0_ = _e1829 + i0_0_4_.z;
                float _e1832 = all0_0_;
                all0_0_ = _e1832 + i0_0_4_.w;
                float _e1835 = all0_0_;
                all0_0_ = _e1835 + i0_0_5_.x;
                float _e1838 = all0_0_;
                all0_0_ = _e1838 + i0_0_5_.y;
                float _e1841 = all0_0_;
                all0_0_ = _e1841 + i0_0_5_.z;
                float _e1844 = all0_0_;
                all0_0_ = _e1844 + i0_0_5_.w;
                float _e1847 = all0_0_;
                all0_0_ = _e1847 + i0_0_6_.x;
                float _e1850 = all0_0_;
                all0_0_ = _e1850 + i0_0_6_.y;
                float _e1853 = all0_0_;
                all0_0_ = _e1853 + i0_0_6_.z;
                float _e1856 = all0_0_;
                all0_0_ = _e1856 + i0_0_6_.w;
                float _e1859 = all0_0_;
                all0_0_ = _e1859 + i0_0_7_.x;
                float _e1862 = all0_0_;
                all0_0_ = _e1862 + i0_0_7_.y;
                float _e1865 = all0_0_;
                all0_0_ = _e1865 + i0_0_7_.z;
                float _e1868 = all0_0_;
                all0_0_ = _e1868 + i0_0_7_.w;
                dot0_0_ = v0_0_0_ * i0_0_0_.x;
                float _e1875 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e1875);
                float _e1878 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e1878);
                float _e1881 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e1881);
                float _e1884 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e1884);
                float _e1887 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e1887);
                float _e1890 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e1890);
                float _e1893 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e1893);
                float _e1896 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e1896);
                float _e1899 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e1899);
                float _e1902 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e1902);
                float _e1905 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e1905);
                float _e1908 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e1908);
                float _e1911 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e1911);
                float _e1914 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e1914);
                float _e1917 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e1917);
                float _e1920 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_16_, i0_0_4_.x, _e1920);
                float _e1923 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_17_, i0_0_4_.y, _e1923);
                float _e1926 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_18_, i0_0_4_.z, _e1926);
                float _e1929 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_19_, i0_0_4_.w, _e1929);
                float _e1932 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_20_, i0_0_5_.x, _e1932);
                float _e1935 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_21_, i0_0_5_.y, _e1935);
                float _e1938 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_22_, i0_0_5_.z, _e1938);
                float _e1941 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_23_, i0_0_5_.w, _e1941);
                float _e1944 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_24_, i0_0_6_.x, _e1944);
                float _e1947 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_25_, i0_0_6_.y, _e1947);
                float _e1950 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_26_, i0_0_6_.z, _e1950);
                float _e1953 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_27_, i0_0_6_.w, _e1953);
                float _e1956 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_28_, i0_0_7_.x, _e1956);
                float _e1959 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_29_, i0_0_7_.y, _e1959);
                float _e1962 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_30_, i0_0_7_.z, _e1962);
                float _e1965 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_31_, i0_0_7_.w, _e1965);
                float _e1967 = dot0_0_;
                float _e1968 = all0_0_;
                float _e1969 = acc0_;
                acc0_ = metal::fma(_e1214, _e1967, metal::fma(_e1218, _e1968, _e1969));
                dot1_0_ = v0_1_0_ * i0_0_0_.x;
                float _e1976 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_1_, i0_0_0_.y, _e1976);
                float _e1979 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_2_, i0_0_0_.z, _e1979);
                float _e1982 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_3_, i0_0_0_.w, _e1982);
                float _e1985 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_4_, i0_0_1_.x, _e1985);
                float _e1988 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_5_, i0_0_1_.y, _e1988);
                float _e1991 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_6_, i0_0_1_.z, _e1991);
                float _e1994 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_7_, i0_0_1_.w, _e1994);
                float _e1997 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_8_, i0_0_2_.x, _e1997);
                float _e2000 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_9_, i0_0_2_.y, _e2000);
                float _e2003 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_10_, i0_0_2_.z, _e2003);
                float _e2006 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_11_, i0_0_2_.w, _e2006);
                float _e2009 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_12_, i0_0_3_.x, _e2009);
                float _e2012 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_13_, i0_0_3_.y, _e2012);
                float _e2015 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_14_, i0_0_3_.z, _e2015);
                float _e2018 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_15_, i0_0_3_.w, _e2018);
                float _e2021 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_16_, i0_0_4_.x, _e2021);
                float _e2024 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_17_, i0_0_4_.y, _e2024);
                float _e2027 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_18_, i0_0_4_.z, _e2027);
                float _e2030 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_19_, i0_0_4_.w, _e2030);
                float _e2033 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_20_, i0_0_5_.x, _e2033);
                float _e2036 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_21_, i0_0_5_.y, _e2036);
                float _e2039 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_22_, i0_0_5_.z, _e2039);
                float _e2042 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_23_, i0_0_5_.w, _e2042);
                float _e2045 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_24_, i0_0_6_.x, _e2045);
                float _e2048 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_25_, i0_0_6_.y, _e2048);
                float _e2051 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_26_, i0_0_6_.z, _e2051);
                float _e2054 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_27_, i0_0_6_.w, _e2054);
                float _e2057 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_28_, i0_0_7_.x, _e2057);
                float _e2060 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_29_, i0_0_7_.y, _e2060);
                float _e2063 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_30_, i0_0_7_.z, _e2063);
                float _e2066 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_31_, i0_0_7_.w, _e2066);
                float _e2068 = dot1_0_;
                float _e2069 = all0_0_;
                float _e2070 = acc1_;
                acc1_ = metal::fma(_e1226, _e2068, metal::fma(_e1230, _e2069, _e2070));
            }
            uint _e2073 = begin;
            uint unit1_2 = (_e2073 + 32u) + lane;
            if (unit1_2 < units) {
                uint column_1 = unit1_2 * 32u;
                uint q0_0_0_1 = u0_0_1_.x;
                uint q0_1_0_1 = u0_0_1_.y;
                uint q0_2_0_1 = u0_0_1_.z;
                uint q0_3_0_1 = u0_0_1_.w;
                float _e2087 = number(sw0_1_, s0_ + (column_1 / 64u));
                float _e2091 = number(bw0_1_, s0_ + (column_1 / 64u));
                uint q1_0_0_1 = u1_0_1_.x;
                uint q1_1_0_1 = u1_0_1_.y;
                uint q1_2_0_1 = u1_0_1_.z;
                uint q1_3_0_1 = u1_0_1_.w;
                float _e2099 = number(sw1_1_, s1_ + (column_1 / 64u));
                float _e2103 = number(bw1_1_, s1_ + (column_1 / 64u));
                uint _e2106 = begin;
                uint local_5 = (column_1 >> 2u) - (_e2106 * 8u);
                uint place_1 = local_5 + (local_5 >> 3u);
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
                float _e2651 = all0_0_1;
                all0_0_1 = _e2651 + i0_0_0_1.y;
                float _e2654 = all0_0_1;
                all0_0_1 = _e2654 + i0_0_0_1.z;
                float _e2657 = all0_0_1;
                all0_0_1 = _e2657 + i0_0_0_1.w;
                float _e2660 = all0_0_1;
                all0_0_1 = _e2660 + i0_0_1_1.x;
                float _e2663 = all0_0_1;
                all0_0_1 = _e2663 + i0_0_1_1.y;
                float _e2666 = all0_0_1;
                all0_0_1 = _e2666 + i0_0_1_1.z;
                float _e2669 = all0_0_1;
                all0_0_1 = _e2669 + i0_0_1_1.w;
                float _e2672 = all0_0_1;
                all0_0_1 = _e2672 + i0_0_2_1.x;
                float _e2675 = all0_0_1;
                all0_0_1 = _e2675 + i0_0_2_1.y;
                float _e2678 = all0_0_1;
                all0_0_1 = _e2678 + i0_0_2_1.z;
                float _e2681 = all0_0_1;
                all0_0_1 = _e2681 + i0_0_2_1.w;
                float _e2684 = all0_0_1;
                all0_0_1 = _e2684 + i0_0_3_1.x;
                float _e2687 = all0_0_1;
                all0_0_1 = _e2687 + i0_0_3_1.y;
                float _e2690 = all0_0_1;
                all0_0_1 = _e2690 + i0_0_3_1.z;
                float _e2693 = all0_0_1;
                all0_0_1 = _e2693 + i0_0_3_1.w;
                float _e2696 = all0_0_1;
                all0_0_1 = _e2696 + i0_0_4_1.x;
                float _e2699 = all0_0_1;
                all0_0_1 = _e2699 + i0_0_4_1.y;
                float _e2702 = all0_0_1;
                all0_0_1 = _e2702 + i0_0_4_1.z;
                float _e2705 = all0_0_1;
                all0_0_1 = _e2705 + i0_0_4_1.w;
                float _e2708 = all0_0_1;
                all0_0_1 = _e2708 + i0_0_5_1.x;
                float _e2711 = all0_0_1;
                all0_0_1 = _e2711 + i0_0_5_1.y;
                float _e2714 = all0_0_1;
                all0_0_1 = _e2714 + i0_0_5_1.z;
                float _e2717 = all0_0_1;
                all0_0_1 = _e2717 + i0_0_5_1.w;
                float _e2720 = all0_0_1;
                all0_0_1 = _e2720 + i0_0_6_1.x;
                float _e2723 = all0_0_1;
                all0_0_1 = _e2723 + i0_0_6_1.y;
                float _e2726 = all0_0_1;
                all0_0_1 = _e2726 + i0_0_6_1.z;
                float _e2729 = all0_0_1;
                all0_0_1 = _e2729 + i0_0_6_1.w;
                float _e2732 = all0_0_1;
                all0_0_1 = _e2732 + i0_0_7_1.x;
                float _e2735 = all0_0_1;
                all0_0_1 = _e2735 + i0_0_7_1.y;
                float _e2738 = all0_0_1;
                all0_0_1 = _e2738 + i0_0_7_1.z;
                float _e2741 = all0_0_1;
                all0_0_1 = _e2741 + i0_0_7_1.w;
                dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                float _e2748 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e2748);
                float _e2751 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e2751);
                float _e2754 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e2754);
                float _e2757 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e2757);
                float _e2760 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e2760);
                float _e2763 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e2763);
                float _e2766 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e2766);
                float _e2769 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e2769);
                float _e2772 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e2772);
                float _e2775 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e2775);
                float _e2778 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e2778);
                float _e2781 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e2781);
                float _e2784 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e2784);
                float _e2787 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e2787);
                float _e2790 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e2790);
                float _e2793 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_16_1, i0_0_4_1.x, _e2793);
                float _e2796 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_17_1, i0_0_4_1.y, _e2796);
                float _e2799 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_18_1, i0_0_4_1.z, _e2799);
                float _e2802 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_19_1, i0_0_4_1.w, _e2802);
                float _e2805 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_20_1, i0_0_5_1.x, _e2805);
                float _e2808 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_21_1, i0_0_5_1.y, _e2808);
                float _e2811 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_22_1, i0_0_5_1.z, _e2811);
                float _e2814 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_23_1, i0_0_5_1.w, _e2814);
                float _e2817 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_24_1, i0_0_6_1.x, _e2817);
                float _e2820 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_25_1, i0_0_6_1.y, _e2820);
                float _e2823 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_26_1, i0_0_6_1.z, _e2823);
                float _e2826 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_27_1, i0_0_6_1.w, _e2826);
                float _e2829 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_28_1, i0_0_7_1.x, _e2829);
                float _e2832 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_29_1, i0_0_7_1.y, _e2832);
                float _e2835 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_30_1, i0_0_7_1.z, _e2835);
                float _e2838 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_31_1, i0_0_7_1.w, _e2838);
                float _e2840 = dot0_0_1;
                float _e2841 = all0_0_1;
                float _e2842 = acc0_;
                acc0_ = metal::fma(_e2087, _e2840, metal::fma(_e2091, _e2841, _e2842));
                dot1_0_1 = v0_1_0_1 * i0_0_0_1.x;
                float _e2849 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_1_1, i0_0_0_1.y, _e2849);
                float _e2852 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_2_1, i0_0_0_1.z, _e2852);
                float _e2855 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_3_1, i0_0_0_1.w, _e2855);
                float _e2858 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_4_1, i0_0_1_1.x, _e2858);
                float _e2861 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_5_1, i0_0_1_1.y, _e2861);
                float _e2864 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_6_1, i0_0_1_1.z, _e2864);
                float _e2867 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_7_1, i0_0_1_1.w, _e2867);
                float _e2870 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_8_1, i0_0_2_1.x, _e2870);
                float _e2873 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_9_1, i0_0_2_1.y, _e2873);
                float _e2876 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_10_1, i0_0_2_1.z, _e2876);
                float _e2879 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_11_1, i0_0_2_1.w, _e2879);
                float _e2882 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_12_1, i0_0_3_1.x, _e2882);
                float _e2885 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_13_1, i0_0_3_1.y, _e2885);
                float _e2888 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_14_1, i0_0_3_1.z, _e2888);
                float _e2891 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_15_1, i0_0_3_1.w, _e2891);
                float _e2894 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_16_1, i0_0_4_1.x, _e2894);
                float _e2897 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_17_1, i0_0_4_1.y, _e2897);
                float _e2900 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_18_1, i0_0_4_1.z, _e2900);
                float _e2903 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_19_1, i0_0_4_1.w, _e2903);
                float _e2906 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_20_1, i0_0_5_1.x, _e2906);
                float _e2909 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_21_1, i0_0_5_1.y, _e2909);
                float _e2912 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_22_1, i0_0_5_1.z, _e2912);
                float _e2915 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_23_1, i0_0_5_1.w, _e2915);
                float _e2918 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_24_1, i0_0_6_1.x, _e2918);
                float _e2921 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_25_1, i0_0_6_1.y, _e2921);
                float _e2924 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_26_1, i0_0_6_1.z, _e2924);
                float _e2927 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_27_1, i0_0_6_1.w, _e2927);
                float _e2930 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_28_1, i0_0_7_1.x, _e2930);
                float _e2933 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_29_1, i0_0_7_1.y, _e2933);
                float _e2936 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_30_1, i0_0_7_1.z, _e2936);
                float _e2939 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_31_1, i0_0_7_1.w, _e2939);
                float _e2941 = dot1_0_1;
                float _e2942 = all0_0_1;
                float _e2943 = acc1_;
                acc1_ = metal::fma(_e2099, _e2941, metal::fma(_e2103, _e2942, _e2943));
            }
        }
    }
    float _e2958 = acc0_;
    sums.inner[(((team * 2u) + 0u) * 32u) + lane] = _e2958;
    float _e2968 = acc1_;
    sums.inner[(((team * 2u) + 1u) * 32u) + lane] = _e2968;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 2u) {
        uint slot = (team * 2u) + (lane >> 2u);
        uint at = (slot * 32u) + ((lane & 3u) * 8u);
        float _e2994 = sums.inner[at];
        float _e2999 = sums.inner[at + 1u];
        float _e3005 = sums.inner[at + 2u];
        float _e3010 = sums.inner[at + 3u];
        float _e3017 = sums.inner[at + 4u];
        float _e3022 = sums.inner[at + 5u];
        float _e3028 = sums.inner[at + 6u];
        float _e3033 = sums.inner[at + 7u];
        part.inner[(slot * 4u) + (lane & 3u)] = ((_e2994 + _e2999) + (_e3005 + _e3010)) + ((_e3017 + _e3022) + (_e3028 + _e3033));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 2u) {
        uint at_1 = ((team * 2u) + lane) * 4u;
        float _e3046 = part.inner[at_1];
        float _e3051 = part.inner[at_1 + 1u];
        float _e3057 = part.inner[at_1 + 2u];
        float _e3062 = part.inner[at_1 + 3u];
        float sum = (_e3046 + _e3051) + (_e3057 + _e3062);
        uint n = 0u + lane;
        uint r = n % 2u;
        uint t = n / 2u;
        uint row = first_1 + r;
        uint _e3072 = rows;
        if (row < _e3072) {
            uint _e3074 = which;
            switch(_e3074) {
                case 3u: {
                    y3_[row] = sum;
                    return;
                }
                case 2u: {
                    y2_[row] = sum;
                    return;
                }
                case 1u: {
                    y1_[row] = sum;
                    return;
                }
                default: {
                    float _e3083 = old0_;
                    float _e3084 = tap0_;
                    float _e3085 = filtered;
                    filtered = metal::fma(_e3083, _e3084, _e3085);
                    float _e3087 = old1_;
                    float _e3088 = tap1_;
                    float _e3089 = filtered;
                    filtered = metal::fma(_e3087, _e3088, _e3089);
                    float _e3091 = old2_;
                    float _e3092 = tap2_;
                    float _e3093 = filtered;
                    filtered = metal::fma(_e3091, _e3092, _e3093);
                    float _e3095 = tap3_;
                    float _e3096 = filtered;
                    filtered = metal::fma(sum, _e3095, _e3096);
                    uint _e3102 = p.rows0_;
                    float _e3106 = old1_;
                    tail[(0u * _e3102) + row] = _e3106;
                    uint _e3111 = p.rows0_;
                    float _e3115 = old2_;
                    tail[(1u * _e3111) + row] = _e3115;
                    uint _e3120 = p.rows0_;
                    tail[(2u * _e3120) + row] = sum;
                    float _e3126 = filtered;
                    float _e3127 = filtered;
                    y0_[row] = _e3126 / (1.0 + metal::exp(-(_e3127)));
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
