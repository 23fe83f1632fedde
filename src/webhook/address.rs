//! Where a callback may go: a numeric judgement of every address a name resolves to.
//!
//! Text is never judged: `http://127.1`, `http://2130706433` and `[::ffff:7f00:1]` are all the same number once parsed.
//! Addresses that carry an IPv4 address inside are judged by that (mapped, 6to4, NAT64 of the well-known prefix, ISATAP) or
//! refused altogether (compatible, Teredo, NAT64 of a local prefix). What is not plainly public is forbidden, unless the
//! operator lists its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is plainly public: reachable on the internet and belonging to nobody's inside. A callback is sent from
/// where the service stands, so an inside address would let any team speak to the operator's own machines and to a cloud's
/// metadata service (SSRF).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// IANA special-purpose IPv4 space (RFC 6890 and its registry), multicast and class E, and what clouds put outside of it. A
/// table of refusals, so it must be complete: what is missing here can be reached.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // a cloud's metadata and wire services outside the private ranges
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let within = |&(net, prefix): &(Ipv4Addr, u32)| (net.to_bits() ^ address.to_bits()) >> (32 - prefix) == 0;
    !NOT_PUBLIC_V4.iter().any(within)
}

/// A list of what is let through: global unicast, `2000::/3`, less what IANA has set aside in it. New special space outside
/// of it is refused without a change here.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    let segments = address.segments();
    let low_v4 = || Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).expect("masked to 32 bits"));
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    // NAT64: the network's gateway would connect to the address inside
    if bits >> 32 == 0x0064_ff9b_0000_0000_0000_0000 {
        return is_public_v4(low_v4());
    }
    // 6to4
    if segments[0] == 0x2002 {
        let inside = Ipv4Addr::from_bits(u32::from(segments[1]) << 16 | u32::from(segments[2]));
        return is_public_v4(inside);
    }
    // ISATAP, under any prefix
    if matches!(segments[4], 0 | 0x0200) && segments[5] == 0x5efe && !is_public_v4(low_v4()) {
        return false;
    }
    let is_global_unicast = bits >> 125 == 0b001;
    let is_special = (segments[0] == 0x2001 && (segments[1] < 0x0200 || segments[1] == 0x0db8)) // assignments, Teredo, ORCHID; documentation
        || (segments[0] == 0x3fff && segments[1] < 0x1000);
    is_global_unicast && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disguise_of_an_inside_address_is_seen_through() {
        for inside in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:7f00:1",
            "::ffff:a9fe:a9fe",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "2002:7f00:1::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
            "2a00:1450::5efe:a00:1",
            "2a00:1450::200:5efe:a00:1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for public in [
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.32.0.1",
            "198.20.0.1",
            "2a00:1450:4001::1",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
