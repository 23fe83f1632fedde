//! Ranges of addresses, as `10.0.0.0/8` or `fd00::/8`.
//!
//! An IPv4 address written as IPv6 (`::ffff:10.0.0.1`) is the IPv4 address, whatever a resolver hands out; so is a range
//! (`::ffff:10.0.0.0/104` is `10.0.0.0/8`).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One range (RFC 4632, RFC 4291): an address and how many of its leading bits count. No bit is set behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// Text that is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no range of addresses; write it like `10.0.0.0/8`, with nothing set behind the prefix")]
pub struct NotCidr(String);

impl Cidr {
    /// A range of one family never holds an address of the other.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (range, asked) = (bits(self.address), bits(address.to_canonical()));
        range.1 == asked.1 && masked(range.0, self.prefix, range.1) == masked(asked.0, self.prefix, asked.1)
    }
}

/// Address as a number, and how many bits it has.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The leading bits alone. A shift by the whole width is 0, which is what `/0` means.
fn masked(address: u128, prefix: u8, width: u8) -> u128 {
    address.checked_shr(u32::from(width - prefix)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = NotCidr;

    fn from_str(text: &str) -> Result<Self, NotCidr> {
        let wrong = || NotCidr(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let (number, width) = bits(address);
        if prefix > width {
            return Err(wrong());
        }
        let kept = masked(number, prefix, width).checked_shl(u32::from(width - prefix)).unwrap_or(0);
        if kept != number {
            return Err(wrong());
        }
        // Such an address has a bit set at the 96th place, so the prefix is at least as long.
        let mapped = match (address.to_canonical(), prefix.checked_sub(128 - 32)) {
            (canonical @ IpAddr::V4(_), Some(prefix)) if width == 128 => Some(Self { address: canonical, prefix }),
            _ => None,
        };
        Ok(mapped.unwrap_or(Self { address, prefix }))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        range.parse::<Cidr>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_range_holds_its_addresses_and_no_others() {
        assert!(contains("10.0.0.0/8", "10.255.1.2"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("10.0.0.0/8", "a00::"));
        assert!(contains("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert!(contains("::ffff:10.0.0.0/104", "::ffff:10.1.2.3"));
        assert!(!contains("::ffff:10.0.0.0/104", "11.0.0.0"));
        assert!(contains("::ffff:0:0/96", "1.2.3.4"));
        assert!(!contains("::ffff:0:0/96", "::1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4"));
        assert!(!contains("0.0.0.0/0", "::1"));
        assert!(contains("::1/128", "::1"));
        assert!(contains("fd00::/8", "fdff::1"));
        assert!(contains("127.0.0.1/32", "127.0.0.1"));
        assert!(!contains("127.0.0.1/32", "127.0.0.2"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.1/8", "::/129", "x/8", "10.0.0.0/-1", "::ffff:0:0/95"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
        assert_eq!("fd00::/8".parse::<Cidr>().unwrap().to_string(), "fd00::/8");
        assert_eq!("::ffff:10.0.0.0/104".parse::<Cidr>().unwrap().to_string(), "10.0.0.0/8");
    }
}
