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
    uint stride;
    uint searched;
    uint lists;
};
struct type_3 {
    metal::uint2 inner[256];
};

uint ordered(
    uint logit
) {
    bool local_1 = {};
    uint size = logit & 2147483647u;
    if (!((size > 2139095040u))) {
        local_1 = logit == 2139095040u;
    } else {
        local_1 = true;
    }
    bool _e11 = local_1;
    if (_e11) {
        return 4294967295u;
    }
    if (size == 0u) {
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
, threadgroup type_3& best
, constant _mslBufferSizes& _buffer_sizes [[buffer(4)]]
) {
    metal::uint2 first = metal::uint2(0u, 4294967295u);
    uint i = {};
    uint half_ = 128u;
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e16 = p.searched;
    uint _e20 = p.count;
    uint end = metal::min((wid.x + 1u) * _e16, _e20);
    uint _e25 = p.searched;
    i = (wid.x * _e25) + lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e46 = i;
            i = _e46 + 256u;
        }
        loop_init = false;
        uint _e29 = i;
        if (_e29 < end) {
        } else {
            break;
        }
        {
            uint _e35 = p.stride;
            uint _e37 = i;
            uint _e40 = given[(wid.y * _e35) + _e37];
            uint _e41 = ordered(_e40);
            uint _e42 = i;
            metal::uint2 other = metal::uint2(_e41, _e42);
            metal::uint2 _e44 = first;
            bool _e45 = precedes(other, _e44);
            if (_e45) {
                first = other;
            }
        }
    }
    metal::uint2 _e51 = first;
    best.inner[lid] = _e51;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e79 = half_;
            half_ = _e79 >> 1u;
        }
        loop_init_1 = false;
        uint _e54 = half_;
        if (_e54 > 0u) {
        } else {
            break;
        }
        {
            uint _e57 = half_;
            if (lid < _e57) {
                uint _e62 = half_;
                metal::uint2 _e65 = best.inner[lid + _e62];
                metal::uint2 _e68 = best.inner[lid];
                bool _e69 = precedes(_e65, _e68);
                local = _e69;
            } else {
                local = false;
            }
            bool _e71 = local;
            if (_e71) {
                uint _e75 = half_;
                metal::uint2 _e78 = best.inner[lid + _e75];
                best.inner[lid] = _e78;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    if (lid == 0u) {
        uint _e87 = p.lists;
        uint at = ((wid.y * _e87) + wid.x) * 2u;
        uint _e98 = best.inner[0].x;
        found[at] = _e98;
        uint _e106 = best.inner[0].y;
        found[at + 1u] = _e106;
        return;
    } else {
        return;
    }
}
