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

typedef float type_1[1];
typedef uint type_3[1];
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
, device type_3 const& control [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    float u0_ = {};
    float u1_ = {};
    float u2_ = {};
    uint t = 0u;
    float sum = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint c = (wid.x * 256u) + lid;
    uint _e13 = p.channels;
    if (c < _e13) {
        float w0_ = weight[(c * 4u) + 0u];
        float w1_ = weight[(c * 4u) + 1u];
        float w2_ = weight[(c * 4u) + 2u];
        float w3_ = weight[(c * 4u) + 3u];
        uint _e47 = p.channels;
        float _e51 = tail[(0u * _e47) + c];
        u0_ = _e51;
        uint _e57 = p.channels;
        float _e61 = tail[(1u * _e57) + c];
        u1_ = _e61;
        uint _e67 = p.channels;
        float _e71 = tail[(2u * _e67) + c];
        u2_ = _e71;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e117 = t;
                t = _e117 + 1u;
            }
            loop_init = false;
            uint _e75 = t;
            uint _e78 = p.tokens;
            if (_e75 < _e78) {
            } else {
                break;
            }
            {
                uint _e82 = p.first;
                uint _e83 = t;
                uint _e87 = p.channels;
                uint at = ((_e82 + _e83) * _e87) + c;
                float u3_ = x[at];
                sum = 0.0;
                float _e95 = u0_;
                float _e96 = sum;
                sum = metal::fma(_e95, w0_, _e96);
                float _e98 = u1_;
                float _e99 = sum;
                sum = metal::fma(_e98, w1_, _e99);
                float _e101 = u2_;
                float _e102 = sum;
                sum = metal::fma(_e101, w2_, _e102);
                float _e104 = sum;
                sum = metal::fma(u3_, w3_, _e104);
                float _e108 = sum;
                float _e109 = sum;
                y[at] = _e108 / (1.0 + metal::exp(-(_e109)));
                float _e115 = u1_;
                u0_ = _e115;
                float _e116 = u2_;
                u1_ = _e116;
                u2_ = u3_;
            }
        }
        uint _e124 = p.channels;
        float _e128 = u0_;
        tail[(0u * _e124) + c] = _e128;
        uint _e133 = p.channels;
        float _e137 = u1_;
        tail[(1u * _e133) + c] = _e137;
        uint _e142 = p.channels;
        float _e146 = u2_;
        tail[(2u * _e142) + c] = _e146;
        return;
    } else {
        return;
    }
}
