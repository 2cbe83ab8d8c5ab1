// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
};

typedef float type_1[1];
struct Parameters {
    uint channels;
    uint first;
    uint tokens;
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& x [[buffer(1)]]
, device type_1 const& weight [[buffer(2)]]
, device type_1& tail [[buffer(3)]]
, device type_1& y [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float u0_ = {};
    float u1_ = {};
    float u2_ = {};
    uint t = 0u;
    float sum = {};
    uint c = (wid.x * 256u) + lid;
    uint _e8 = p.channels;
    if (c < _e8) {
        float w0_ = weight[(c * 4u) + 0u];
        float w1_ = weight[(c * 4u) + 1u];
        float w2_ = weight[(c * 4u) + 2u];
        float w3_ = weight[(c * 4u) + 3u];
        uint _e42 = p.channels;
        float _e46 = tail[(0u * _e42) + c];
        u0_ = _e46;
        uint _e52 = p.channels;
        float _e56 = tail[(1u * _e52) + c];
        u1_ = _e56;
        uint _e62 = p.channels;
        float _e66 = tail[(2u * _e62) + c];
        u2_ = _e66;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e112 = t;
                t = _e112 + 1u;
            }
            loop_init = false;
            uint _e70 = t;
            uint _e73 = p.tokens;
            if (_e70 < _e73) {
            } else {
                break;
            }
            {
                uint _e77 = p.first;
                uint _e78 = t;
                uint _e82 = p.channels;
                uint at = ((_e77 + _e78) * _e82) + c;
                float u3_ = x[at];
                sum = 0.0;
                float _e90 = u0_;
                float _e91 = sum;
                sum = metal::fma(_e90, w0_, _e91);
                float _e93 = u1_;
                float _e94 = sum;
                sum = metal::fma(_e93, w1_, _e94);
                float _e96 = u2_;
                float _e97 = sum;
                sum = metal::fma(_e96, w2_, _e97);
                float _e99 = sum;
                sum = metal::fma(u3_, w3_, _e99);
                float _e103 = sum;
                float _e104 = sum;
                y[at] = _e103 / (1.0 + metal::exp(-(_e104)));
                float _e110 = u1_;
                u0_ = _e110;
                float _e111 = u2_;
                u1_ = _e111;
                u2_ = u3_;
            }
        }
        uint _e119 = p.channels;
        float _e123 = u0_;
        tail[(0u * _e119) + c] = _e123;
        uint _e128 = p.channels;
        float _e132 = u1_;
        tail[(1u * _e128) + c] = _e132;
        uint _e137 = p.channels;
        float _e141 = u2_;
        tail[(2u * _e137) + c] = _e141;
        return;
    } else {
        return;
    }
}
