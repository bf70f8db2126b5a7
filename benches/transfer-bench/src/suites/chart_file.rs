//! The output file of a chart.

use crate::error::BenchError;
use crate::machine::Machine;
use std::path::{Path, PathBuf};
use transfer_terminal::chart::Chart;
use transfer_terminal::unfinished::OutputFile;

/// The output file of a chart. An existing file stays until [`ChartFile::finish`].
#[derive(Debug)]
pub(super) struct ChartFile {
    path: PathBuf,
    file: OutputFile,
}

impl ChartFile {
    /// Makes sure that the file can be written.
    pub(super) fn begin(path: &Path) -> Result<ChartFile, BenchError> {
        let failed = |source| BenchError::File { what: "write", path: path.to_owned(), source };
        Ok(ChartFile { path: path.to_owned(), file: OutputFile::begin(path).map_err(failed)? })
    }

    /// Draws the chart, with the machine and the number of runs at its foot, and writes it.
    pub(super) fn finish(self, mut chart: Chart, runs: u32) -> Result<(), BenchError> {
        let machine = Machine::look();
        chart.foot =
            format!("{}, {} cores, Linux {}; medians of {runs} runs", machine.cpu, machine.cores, machine.kernel);
        let svg = chart.to_svg().map_err(|error| BenchError::Chart { why: error.why })?;
        self.file.finish_with(&svg).map_err(|source| BenchError::File { what: "write", path: self.path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritable_chart_is_an_error_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere/chart.svg");
        let error = ChartFile::begin(&nowhere).unwrap_err();
        assert!(error.to_string().contains("nowhere/chart.svg"), "{error}");
        let path = folder.path().join("chart.svg");
        let file = ChartFile::begin(&path).unwrap();
        file.finish(Chart { panels: Vec::new(), foot: String::new() }, 2).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg"));
    }
}
