//! An archive that is measured.
//!
//! The two-step form (measure, then parts) is what HTTP asks for: `Content-Length` and `ETag` go out before the first byte.

use super::super::digest::Digest;
use super::member::{Error, Format, Source};
use super::outline::{Outline, measure};
use super::parts::Parts;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An archive whose length and ETag are known and whose parts can be had.
///
/// Cheap to clone. Holds the source, not the entries.
pub struct Archive<S> {
    source: Arc<S>,
    outline: Arc<Outline>,
}

impl<S> Clone for Archive<S> {
    fn clone(&self) -> Self {
        Self { source: Arc::clone(&self.source), outline: Arc::clone(&self.outline) }
    }
}

impl<S> fmt::Debug for Archive<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("outline", &self.outline).finish_non_exhaustive()
    }
}

impl<S: Source> Archive<S> {
    /// Walks the entries once and measures the archive. Blocks as the source does. An error here is the last that a client can be told by a
    /// status.
    pub fn measure(format: Format, source: S) -> Result<Self, Error> {
        let outline = Arc::new(measure(format, &source)?);
        Ok(Self { source: Arc::new(source), outline })
    }

    pub fn length(&self) -> u64 {
        self.outline.length
    }

    pub fn entries(&self) -> u64 {
        self.outline.entries
    }

    /// A strong validator: equal ETags are equal bytes. Made from format, names, modes, times and the digests, sizes and
    /// crcs of all files, so it knows nothing of packs.
    pub fn etag(&self) -> Digest {
        self.outline.etag
    }

    /// The parts of `range`, in order, together exactly as long as it. May be asked for again and for any range, at once too.
    pub fn parts(&self, range: Range<u64>) -> Result<Parts<S>, Error> {
        if range.start > range.end || range.end > self.outline.length {
            return Err(Error::Range { start: range.start, end: range.end, length: self.outline.length });
        }
        Ok(Parts::new(Arc::clone(&self.source), Arc::clone(&self.outline), range))
    }
}
