//! The one name that bytes have: BLAKE3-256.
//!
//! Chunk ids, whole-file digests, pack ids and version identities are all [`Digest`]s. It is a 32-byte value from the moment it is
//! parsed; no room carries a digest as text, so a malformed one can reach neither a key nor a path.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// BLAKE3-256 of some bytes. As text (display, parse, serde) exactly 64 lower-case hex digits, as `b3sum` prints them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Takes the digest as it is; nothing is hashed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// True for one chunk id in 64: those that the service keeps and that `known` asks for. Part of the protocol.
    pub const fn is_sample(&self) -> bool {
        self.0[31] & 0x3f == 0
    }

    fn hex(self) -> [u8; 64] {
        let mut text = [0; 64];
        HEXLOWER.encode_mut(&self.0, &mut text);
        text
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.hex()).expect("hex digits are ASCII"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: give 64 lower-case hex digits, as `b3sum` prints them")]
pub struct Malformed;

impl FromStr for Digest {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text.len() != 64 {
            return Err(Malformed);
        }
        let mut bytes = [0; 32];
        HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).map_err(|_| Malformed)?;
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.hex()).expect("hex digits are ASCII"))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Digest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 lower-case hex digits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// The digest of bytes that are all at hand, made on the calling thread.
pub fn digest(bytes: &[u8]) -> Digest {
    blake3::hash(bytes).into()
}

/// The digest of bytes that come in pieces; where the pieces end does not matter. Feed it 16 KiB or more at a time: BLAKE3 is several
/// times slower on crumbs.
#[derive(Debug, Clone, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was fed so far; more may be fed afterwards.
    pub fn finalize(&self) -> Digest {
        self.0.finalize().into()
    }

    /// Forgets what was fed, keeping the state's memory.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the BLAKE3 reference: the digest of no bytes.
    const EMPTY: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    #[test]
    fn text_is_strict_and_round_trips() {
        assert_eq!(digest(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>(), Ok(digest(b"")));
        let json = serde_json::to_string(&digest(b"")).unwrap();
        assert_eq!(json, format!("\"{EMPTY}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest(b""));
        let upper = EMPTY.to_uppercase();
        for bad in ["", "af", &EMPTY[1..], &format!("{EMPTY}0"), &upper, &EMPTY.replace('a', "g"), &"é".repeat(32)] {
            assert_eq!(bad.parse::<Digest>(), Err(Malformed), "{bad}");
            assert!(serde_json::from_str::<Digest>(&format!("\"{bad}\"")).is_err(), "{bad}");
        }
    }

    #[test]
    fn pieces_do_not_matter() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let mut hasher = Hasher::new();
        bytes.chunks(777).for_each(|piece| hasher.update(piece));
        assert_eq!(hasher.finalize(), digest(&bytes));
        hasher.reset();
        assert_eq!(hasher.finalize(), digest(b""));
    }

    #[test]
    fn one_id_in_sixty_four_is_a_sample() {
        let samples = (0..=255).filter(|&last| {
            let mut bytes = [7; 32];
            bytes[31] = last;
            Digest::from_bytes(bytes).is_sample()
        });
        assert_eq!(samples.collect::<Vec<u8>>(), [0, 64, 128, 192]);
    }
}
