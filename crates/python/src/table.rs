//! A table for Python.

use crate::arrow::Stream;
use crate::error;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::sync::Arc;
use strata::inside;
use strata::tidy::{self, Cells, Column};

/// Rows of figures: Arrow to who wants it, lists of Python to who does not.
#[pyclass(module = "strata", frozen)]
pub struct Table {
    columns: Arc<Vec<Column>>,
}

impl Table {
    pub fn of(columns: Vec<Column>) -> Self {
        Self { columns: Arc::new(columns) }
    }

    /// Of results of runs, each with the hash of its input if that is known.
    pub fn of_runs(results: &[(String, Option<String>)]) -> PyResult<Self> {
        let reports = results.iter().map(|(json, _)| inside::report(json));
        let reports = reports.collect::<Result<Vec<_>, _>>().map_err(error::failed)?;
        let inputs = results.iter().map(|(_, input)| input.as_deref());
        Ok(Self::of(tidy::table(reports.iter().zip(inputs).map(Some)).0))
    }
}

#[pymethods]
impl Table {
    /// Names of the columns, in order.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.name.as_str()).collect()
    }

    fn __len__(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    /// A list for each column.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lists = PyDict::new(py);
        for Column { name, cells } in self.columns.iter() {
            match cells {
                Cells::Whole(cells) => lists.set_item(name, cells)?,
                Cells::Real(cells) => lists.set_item(name, cells)?,
                Cells::Text(cells) => lists.set_item(name, cells)?,
            }
        }
        Ok(lists)
    }

    /// A dictionary for each row.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows = (0..self.__len__()).map(|row| {
            let cells = PyDict::new(py);
            for column in self.columns.iter() {
                match &column.cells {
                    Cells::Whole(of) => cells.set_item(&column.name, of[row])?,
                    Cells::Real(of) => cells.set_item(&column.name, of[row])?,
                    Cells::Text(of) => cells.set_item(&column.name, &of[row])?,
                }
            }
            Ok(cells)
        });
        rows.collect()
    }

    /// As comma-separated values.
    fn to_csv(&self) -> String {
        tidy::csv(&self.columns)
    }

    /// The table as a stream of Arrow's C interface, for pandas, polars, pyarrow and others.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Whoever asks for other types may turn these into them: the interface says a request need not be met.
        drop(requested_schema);
        PyCapsule::new_with_value(py, Stream::of(self.columns.clone()), c"arrow_array_stream")
    }

    fn __repr__(&self) -> String {
        let (rows, columns) = (self.__len__(), self.columns.len());
        format!("<strata.Table of {rows} rows and {columns} columns>")
    }
}
