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
    float u0_ = 0.0;
    float u1_ = 0.0;
    float u2_ = 0.0;
    float n0_ = {};
    float n1_ = {};
    float n2_ = {};
    uint t = {};
    float sum = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint c = (wid.x * 256u) + lid;
    uint _e13 = p.channels;
    if (c < _e13) {
        uint begin = wid.y * 64u;
        uint _e22 = p.tokens;
        uint end = metal::min(begin + 64u, _e22);
        float w0_ = weight[(c * 4u) + 0u];
        float w1_ = weight[(c * 4u) + 1u];
        float w2_ = weight[(c * 4u) + 2u];
        float w3_ = weight[(c * 4u) + 3u];
        if (begin >= 3u) {
            uint _e59 = p.first;
            uint _e65 = p.channels;
            float _e69 = x[(((_e59 + begin) - 3u) * _e65) + c];
            u0_ = _e69;
        }
        if (begin >= 2u) {
            uint _e77 = p.first;
            uint _e83 = p.channels;
            float _e87 = x[(((_e77 + begin) - 2u) * _e83) + c];
            u1_ = _e87;
        }
        if (begin >= 1u) {
            uint _e95 = p.first;
            uint _e101 = p.channels;
            float _e105 = x[(((_e95 + begin) - 1u) * _e101) + c];
            u2_ = _e105;
        }
        if (wid.y == 0u) {
            uint _e113 = p.channels;
            float _e117 = tail[(0u * _e113) + c];
            u0_ = _e117;
            uint _e122 = p.channels;
            float _e126 = tail[(1u * _e122) + c];
            u1_ = _e126;
            uint _e131 = p.channels;
            float _e135 = tail[(2u * _e131) + c];
            u2_ = _e135;
            float _e136 = u0_;
            n0_ = _e136;
            uint _e140 = p.tokens;
            if (_e140 == 1u) {
                float _e143 = u1_;
                n0_ = _e143;
            }
            uint _e146 = p.tokens;
            if (_e146 == 2u) {
                float _e149 = u2_;
                n0_ = _e149;
            }
            uint _e152 = p.tokens;
            if (_e152 >= 3u) {
                uint _e158 = p.first;
                uint _e161 = p.tokens;
                uint _e167 = p.channels;
                float _e171 = x[(((_e158 + _e161) - 3u) * _e167) + c];
                n0_ = _e171;
            }
            float _e172 = u1_;
            n1_ = _e172;
            uint _e176 = p.tokens;
            if (_e176 == 1u) {
                float _e179 = u2_;
                n1_ = _e179;
            }
            uint _e182 = p.tokens;
            if (_e182 >= 2u) {
                uint _e188 = p.first;
                uint _e191 = p.tokens;
                uint _e197 = p.channels;
                float _e201 = x[(((_e188 + _e191) - 2u) * _e197) + c];
                n1_ = _e201;
            }
            float _e202 = u2_;
            n2_ = _e202;
            uint _e206 = p.tokens;
            if (_e206 >= 1u) {
                uint _e212 = p.first;
                uint _e215 = p.tokens;
                uint _e221 = p.channels;
                float _e225 = x[(((_e212 + _e215) - 1u) * _e221) + c];
                n2_ = _e225;
            }
            uint _e230 = p.channels;
            float _e234 = n0_;
            tail[(0u * _e230) + c] = _e234;
            uint _e239 = p.channels;
            float _e243 = n1_;
            tail[(1u * _e239) + c] = _e243;
            uint _e248 = p.channels;
            float _e252 = n2_;
            tail[(2u * _e248) + c] = _e252;
        }
        t = begin;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e293 = t;
                t = _e293 + 1u;
            }
            loop_init = false;
            uint _e254 = t;
            if (_e254 < end) {
            } else {
                break;
            }
            {
                uint _e258 = p.first;
                uint _e259 = t;
                uint _e263 = p.channels;
                uint at = ((_e258 + _e259) * _e263) + c;
                float u3_ = x[at];
                sum = 0.0;
                float _e271 = u0_;
                float _e272 = sum;
                sum = metal::fma(_e271, w0_, _e272);
                float _e274 = u1_;
                float _e275 = sum;
                sum = metal::fma(_e274, w1_, _e275);
                float _e277 = u2_;
                float _e278 = sum;
                sum = metal::fma(_e277, w2_, _e278);
                float _e280 = sum;
                sum = metal::fma(u3_, w3_, _e280);
                float _e284 = sum;
                float _e285 = sum;
                y[at] = _e284 / (1.0 + metal::exp(-(_e285)));
                float _e291 = u1_;
                u0_ = _e291;
                float _e292 = u2_;
                u1_ = _e292;
                u2_ = u3_;
            }
        }
        return;
    } else {
        return;
    }
}
