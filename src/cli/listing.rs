//! Listings of any length: page by page from the service, as a table or as one streamed JSON array.
//!
//! A page is printed before the next is asked for, so memory is one page, and who pipes into `head` stops the asking.
//! Columns are aligned within a page only: to align them all, all would have to be read first.

use super::error::Error;
use super::output::{Array, Format, Side, Table};
use super::session::Session;
use crate::client::api::Api;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Write};

/// Columns of the table for people.
pub type Columns = [(&'static str, Side)];

/// Prints every item of a listing. `cells` gives an item's row.
///
/// What changes meanwhile may be listed or not. An error after some pages
/// ends the JSON array without its `]`.
pub async fn list<T>(
    session: &Session,
    api: &Api,
    (segments, query): (&[&str], &[(&str, &str)]),
    columns: &Columns,
    cells: impl Fn(&T) -> Vec<String>,
) -> Result<(), Error>
where
    T: Serialize + DeserializeOwned + Send,
{
    let mut array = (session.format == Format::Json).then(|| Array::new(io::BufWriter::new(io::stdout())));
    let mut cursor = None;
    let mut pages = 0_u64;
    loop {
        let page = api.page::<T>(segments, query, cursor.as_deref()).await?;
        match &mut array {
            Some(array) => page.items.iter().try_for_each(|item| array.item(item))?,
            None => {
                let mut table = Table::new(columns);
                for item in &page.items {
                    let cells = cells(item);
                    table.row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
                }
                let mut out = io::BufWriter::new(io::stdout());
                if pages == 0 || !table.is_empty() {
                    table.write(&mut out)?;
                }
                out.flush()?;
            }
        }
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}
