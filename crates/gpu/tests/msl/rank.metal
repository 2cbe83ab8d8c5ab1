// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
};

typedef uint type_1[1];
struct Parameters {
    uint count;
    uint first;
};
struct type_3 {
    metal::uint2 inner[1024];
};

uint ordered(
    uint logit
) {
    bool local_1 = {};
    uint size_1 = logit & 2147483647u;
    if (!((size_1 > 2139095040u))) {
        local_1 = logit == 2139095040u;
    } else {
        local_1 = true;
    }
    bool _e11 = local_1;
    if (_e11) {
        return 4294967295u;
    }
    if (size_1 == 0u) {
        return 2147483648u;
    }
    return ((logit >> 31u) == 1u) ? ~(logit) : (logit | 2147483648u);
}

bool precedes(
    metal::uint2 a,
    metal::uint2 b
) {
    bool local_2 = {};
    bool local_3 = {};
    if (!((a.x > b.x))) {
        if (a.x == b.x) {
            local_3 = a.y < b.y;
        } else {
            local_3 = false;
        }
        bool _e17 = local_3;
        local_2 = _e17;
    } else {
        local_2 = true;
    }
    bool _e19 = local_2;
    return _e19;
}

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& given [[buffer(1)]]
, device type_1& found [[buffer(2)]]
, device type_1 const& control [[buffer(3)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& keys
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    uint local = {};
    metal::uint2 key = {};
    uint size = 2u;
    uint stride = {};
    uint pair = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    local = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e37 = local;
            local = _e37 + 256u;
        }
        loop_init = false;
        uint _e8 = local;
        if (_e8 < 1024u) {
        } else {
            break;
        }
        {
            uint _e14 = local;
            uint i = (wid.x * 1024u) + _e14;
            key = metal::uint2(0u, 4294967295u);
            uint _e22 = p.count;
            if (i < _e22) {
                uint _e27 = p.first;
                uint _e30 = given[_e27 + i];
                uint _e31 = ordered(_e30);
                key = metal::uint2(_e31, i);
            }
            uint _e34 = local;
            metal::uint2 _e36 = key;
            keys.inner[_e34] = _e36;
        }
    }
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e91 = size;
            size = _e91 << 1u;
        }
        loop_init_1 = false;
        uint _e42 = size;
        if (_e42 <= 1024u) {
        } else {
            break;
        }
        {
            uint _e45 = size;
            stride = _e45 >> 1u;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e88 = stride;
                    stride = _e88 >> 1u;
                }
                loop_init_2 = false;
                uint _e49 = stride;
                if (_e49 > 0u) {
                } else {
                    break;
                }
                {
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                    pair = lid;
                    bool loop_init_3 = true;
                    while(true) {
                        if (!loop_init_3) {
                            uint _e85 = pair;
                            pair = _e85 + 256u;
                        }
                        loop_init_3 = false;
                        uint _e53 = pair;
                        if (_e53 < 512u) {
                        } else {
                            break;
                        }
                        {
                            uint _e56 = pair;
                            uint _e57 = stride;
                            uint _e59 = stride;
                            uint _e63 = pair;
                            uint _e64 = stride;
                            uint low = (((_e56 / _e57) * _e59) * 2u) + (_e63 % _e64);
                            uint _e67 = stride;
                            uint high = low + _e67;
                            uint _e69 = size;
                            bool falling = (low & _e69) == 0u;
                            metal::uint2 a_1 = keys.inner[low];
                            metal::uint2 b_1 = keys.inner[high];
                            bool _e79 = precedes(b_1, a_1);
                            if (_e79 == falling) {
                                keys.inner[low] = b_1;
                                keys.inner[high] = a_1;
                            }
                        }
                    }
                }
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < 64u) {
        uint at = ((wid.x * 64u) + lid) * 2u;
        uint _e107 = keys.inner[lid].x;
        found[at] = _e107;
        uint _e115 = keys.inner[lid].y;
        found[at + 1u] = _e115;
        return;
    } else {
        return;
    }
}
