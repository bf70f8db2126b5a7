//! The status page: three files that are compiled in, and load nothing from elsewhere.
//!
//! The page's data comes from [`crate::observe`] as JSON. The script sets all of it as text, never as HTML, because
//! other processes choose the names of workers and peers, and the texts of errors.

use axum::http::header::{CONTENT_TYPE, HeaderName};

type Asset = ([(HeaderName, &'static str); 1], &'static str);

/// Returns the page `/`.
pub(crate) fn html() -> Asset {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], include_str!("page.html"))
}

/// Returns `/page.css`.
pub(crate) fn css() -> Asset {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css"))
}

/// Returns `/page.js`.
pub(crate) fn script() -> Asset {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}
